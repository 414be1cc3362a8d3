#include "tests/lab/bench/predict_figures.hpp"

#include <gtest/gtest.h>

namespace kvd::bench {
namespace {

TEST(PredictFigures, AnErrorIsAShareOfTheMeasuredTime) {
  EXPECT_DOUBLE_EQ((Prediction{3, 4}).error(), 0.25);
  EXPECT_DOUBLE_EQ((Prediction{5, 4}).error(), 0.25);
}

TEST(PredictFigures, QuantilesAreErrorsThatOccurred) {
  const std::vector<Prediction> ten = {{10, 10}, {11, 10}, {12, 10}, {7, 10},  {6, 10},
                                       {15, 10}, {16, 10}, {3, 10},  {18, 10}, {1, 10}};
  EXPECT_DOUBLE_EQ(error_quantile(ten, 0.5), 0.4);
  EXPECT_DOUBLE_EQ(error_quantile(ten, 0.9), 0.8);
  EXPECT_DOUBLE_EQ(error_quantile(ten, 0.41), 0.4);
  EXPECT_DOUBLE_EQ(error_quantile(ten, 1), 0.9);
  EXPECT_DOUBLE_EQ(error_quantile(std::vector<Prediction>{{2, 1}}, 0.01), 1);
}

TEST(PredictFigures, RanksCountNotDistances) {
  EXPECT_DOUBLE_EQ(rank_correlation(std::vector<Prediction>{{1, 10}, {2, 11}, {90, 12}}), 1);
  EXPECT_DOUBLE_EQ(rank_correlation(std::vector<Prediction>{{3, 10}, {2, 11}, {1, 12}}), -1);
  // d = 0, 1, -1, 0: 1 - 6 * 2 / (4 * 15)
  EXPECT_DOUBLE_EQ(rank_correlation(std::vector<Prediction>{{1, 10}, {3, 11}, {2, 12}, {4, 13}}),
                   0.8);
}

TEST(PredictFigures, EqualValuesShareTheirRank) {
  EXPECT_DOUBLE_EQ(rank_correlation(std::vector<Prediction>{{1, 1}, {1, 2}, {1, 3}}), 0);
  // Ranks 0.5, 0.5, 2, 3 against 0, 1, 2, 3: 4.5 / sqrt(4.5 * 5).
  EXPECT_NEAR(rank_correlation(std::vector<Prediction>{{1, 1}, {1, 2}, {5, 3}, {6, 4}}), 0.948683,
              1e-6);
}

}  // namespace
}  // namespace kvd::bench
