from hf_smoothquant.benchmark.command import main

main()
