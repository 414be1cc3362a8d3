#pragma once

#include "kvd/sim/figures/figure.hpp"

/// Every figure's maker; the catalogue names them. Those of one file share a theme.
namespace kvd::sim::figures {

// orbitflow_closed_form.cpp, orbitflow_example.cpp, orbitflow_search.cpp
[[nodiscard]] Result<Figure> of_fig2b(Lab& lab);
[[nodiscard]] Result<Figure> of_fig2c(Lab& lab);
[[nodiscard]] Result<Figure> of_fig3(Lab& lab);
[[nodiscard]] Result<Figure> of_fig15(Lab& lab);

// superinfer_transfer.cpp
[[nodiscard]] Result<Figure> si_table1(Lab& lab);

// article.cpp
[[nodiscard]] Result<Figure> article_verdicts(Lab& lab);
[[nodiscard]] Result<Figure> article_crossover(Lab& lab);

}  // namespace kvd::sim::figures
