#pragma once

#include "tests/lab/figures/figure.hpp"

/// Every figure's maker; the catalogue names them. The makers of one file share a theme.
namespace kvd::sim::figures {

// orbitflow_closed_form.cpp, orbitflow_example.cpp, orbitflow_search.cpp
[[nodiscard]] Result<Figure> of_fig2b(Lab& lab);
[[nodiscard]] Result<Figure> of_fig2c(Lab& lab);
[[nodiscard]] Result<Figure> of_fig3(Lab& lab);
[[nodiscard]] Result<Figure> of_fig15(Lab& lab);

// orbitflow_slo.cpp
[[nodiscard]] Result<Figure> of_fig8a(Lab& lab);
[[nodiscard]] Result<Figure> of_fig8b(Lab& lab);
[[nodiscard]] Result<Figure> of_fig8c(Lab& lab);
[[nodiscard]] Result<Figure> of_fig9(Lab& lab);

// orbitflow_sensitivity.cpp
[[nodiscard]] Result<Figure> of_fig10(Lab& lab);
[[nodiscard]] Result<Figure> of_fig11(Lab& lab);
[[nodiscard]] Result<Figure> of_fig12(Lab& lab);

// orbitflow_ablation.cpp
[[nodiscard]] Result<Figure> of_fig14a(Lab& lab);
[[nodiscard]] Result<Figure> of_fig14b(Lab& lab);
[[nodiscard]] Result<Figure> of_table1(Lab& lab);

// orbitflow_order.cpp
[[nodiscard]] Result<Figure> of_fig13(Lab& lab);
[[nodiscard]] Result<Figure> of_fig14c(Lab& lab);

// layerkv.cpp
[[nodiscard]] Result<Figure> lk_fig1(Lab& lab);
[[nodiscard]] Result<Figure> lk_fig4(Lab& lab);
[[nodiscard]] Result<Figure> lk_fig5(Lab& lab);
[[nodiscard]] Result<Figure> lk_fig6(Lab& lab);
[[nodiscard]] Result<Figure> lk_fig7(Lab& lab);
[[nodiscard]] Result<Figure> lk_fig8(Lab& lab);

// superinfer_load.cpp
[[nodiscard]] Result<Figure> si_fig1(Lab& lab);
[[nodiscard]] Result<Figure> si_fig16(Lab& lab);
[[nodiscard]] Result<Figure> si_fig23(Lab& lab);

// superinfer_parameters.cpp
[[nodiscard]] Result<Figure> si_fig18(Lab& lab);
[[nodiscard]] Result<Figure> si_fig19(Lab& lab);
[[nodiscard]] Result<Figure> si_fig20(Lab& lab);
[[nodiscard]] Result<Figure> si_fig21(Lab& lab);

// superinfer_link.cpp, superinfer_records.cpp
[[nodiscard]] Result<Figure> si_fig2(Lab& lab);
[[nodiscard]] Result<Figure> si_fig17(Lab& lab);
[[nodiscard]] Result<Figure> si_fig22(Lab& lab);
[[nodiscard]] Result<Figure> si_fig24(Lab& lab);
[[nodiscard]] Result<Figure> si_fig25(Lab& lab);

// superinfer_transfer.cpp
[[nodiscard]] Result<Figure> si_table1(Lab& lab);

// beyond_unified.cpp, beyond_policies.cpp, beyond_engines.cpp
[[nodiscard]] Result<Figure> beyond_unified(Lab& lab);
[[nodiscard]] Result<Figure> beyond_prefill(Lab& lab);
[[nodiscard]] Result<Figure> beyond_lengths(Lab& lab);
[[nodiscard]] Result<Figure> beyond_dram(Lab& lab);
[[nodiscard]] Result<Figure> beyond_link(Lab& lab);
[[nodiscard]] Result<Figure> beyond_engines(Lab& lab);

// article.cpp
[[nodiscard]] Result<Figure> article_verdicts(Lab& lab);
[[nodiscard]] Result<Figure> article_crossover(Lab& lab);

}  // namespace kvd::sim::figures
