"""MNLI: accuracy of a model in fp32, bf16, static and dynamic int8, with confidence intervals.

    python examples/evaluate_mnli.py textattack/bert-base-uncased-MNLI --labels contradiction entailment neutral
    python examples/evaluate_mnli.py ./model --data dev_matched.tsv --modes fp32 static --alpha 0.85 auto -o results
    accelerate launch --cpu --num_processes 2 examples/evaluate_mnli.py ./model --data dev_matched.tsv
    python examples/evaluate_mnli.py --demo     # a tiny random model and twelve pairs, offline

`--help` lists the rest. Needs `pip install -e '.[eval]'`.
"""

from hf_smoothquant.evaluation.command import evaluate_mnli, main
from hf_smoothquant.evaluation.demo import mnli_demo

if __name__ == "__main__":
    main(evaluate_mnli, mnli_demo)
