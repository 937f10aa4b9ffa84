"""Programs run by hand from a checkout: commands, and folders of benchmarks, figures and demos."""
