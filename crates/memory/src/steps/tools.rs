//! Lines as the tools print them, and where they say that a run stands.

use super::{OutputParser, Position, StepBoard, StepPatterns};
use crate::RunFacts;

/// A tool, what it prints, and the step and epoch that it says.
type Case = (&'static str, &'static str, Option<u64>, Option<f64>);

const TOOLS: [Case; 31] = [
    (
        "HF Trainer",
        "\r 12%|█▏        | 10/83 [00:12<01:30,  1.23s/it]\r{'loss': 1.2, 'grad_norm': 0.4, 'epoch': 0.12}\n",
        Some(10),
        Some(0.12),
    ),
    (
        "HF Trainer 5",
        "  0%|          | 1/434 [00:02<20:00, 2.7s/it]{'loss': '2.449', 'grad_norm': '3.12', 'learning_rate': '0', 'epoch': '0.002304'}\n",
        Some(1),
        Some(0.002304),
    ),
    ("HF Trainer in a notebook", " [90/180 01:55 < 01:55, 0.78 it/s, Epoch 15/30]\n", Some(90), Some(15.0)),
    (
        "TRL",
        "{'loss': 0.8, 'num_tokens': 20480.0, 'mean_token_accuracy': 0.83, 'epoch': 0.5}\n",
        None,
        Some(0.5),
    ),
    (
        "LLaMA-Factory's trainer_log.jsonl",
        r#"{"current_steps": 10, "total_steps": 249, "loss": 0.51, "lr": 4.9e-05, "epoch": 0.12, "percentage": 4.02, "elapsed_time": "0:00:12", "remaining_time": "0:04:51"}
"#,
        Some(10),
        Some(0.12),
    ),
    (
        "LLaMA-Factory",
        "[INFO|2025-06-01 10:00:00] llamafactory.train.callbacks:143 >> {'loss': 0.5108, 'learning_rate': 4.9e-05, 'epoch': 0.12, 'throughput': 1234.56}\n",
        None,
        Some(0.12),
    ),
    (
        "Axolotl",
        "{'loss': 0.0001, 'grad_norm': 0.0014, 'learning_rate': 2.60e-05, 'memory/max_mem_active(gib)': 14.56, 'memory/device_mem_reserved(gib)': 14.6, 'epoch': 52.0}\n",
        None,
        Some(52.0),
    ),
    (
        "ms-swift",
        "Train:   8%|▊         | 5/60 [03:52<43:40, 47.64s/it]{'loss': '0.2992', 'epoch': '0.4301', 'global_step/max_steps': '5/60', 'elapsed_time': '3m 53s', 'memory(GiB)': '14.3', 'train_speed(s/it)': '42.51'}\n",
        Some(5),
        Some(0.4301),
    ),
    (
        "torchtune",
        "1|10|Loss: 1.2345678:   4%|▍         | 10/249 [00:12<04:51,  1.22s/it]\n",
        Some(10),
        Some(10.0 / 249.0),
    ),
    (
        "torchtune's log file",
        "Step 10 | loss:1.23 lr:0.0001 peak_memory_active:12.3 tokens_per_second_per_gpu:345 \n",
        Some(10),
        None,
    ),
    (
        "Keras 3",
        "Epoch 1/10\n\r\x1b[1m10/83\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m12s\x1b[0m 170ms/step - accuracy: 0.5012 - loss: 1.2034\n",
        Some(10),
        Some(10.0 / 83.0),
    ),
    (
        "Keras 3, the second epoch",
        "Epoch 1/10\n83/83 ━━━━━━━━━━━━━━━━━━━━ 12s 145ms/step - loss: 1.2034\nEpoch 2/10\n10/83 ━━━━━━━━━━━━━━━━━━━━ 11s 145ms/step - loss: 1.1034\n",
        Some(93),
        Some(93.0 / 83.0),
    ),
    (
        "Keras 2",
        "Epoch 1/10\n\r10/83 [==>...........................] - ETA: 11s - loss: 1.2034\n",
        Some(10),
        Some(10.0 / 83.0),
    ),
    ("Keras, verbose=2", "Epoch 1/10\n83/83 - 12s - 145ms/step - loss: 1.2034\n", Some(83), Some(1.0)),
    (
        "Lightning",
        "Epoch 0:   6%|█▍         | 86/1563 [00:06<01:44, 14.19it/s, v_num=0, train_loss=1.800, train_acc=0.281]\n",
        Some(86),
        Some(86.0 / 1563.0),
    ),
    (
        "Lightning in a notebook",
        "Epoch 8: 100% 16/16 [00:15<00:00,  1.05it/s, loss=0.232, v_num=0, train_loss=0.212]\n",
        Some(16),
        Some(1.0),
    ),
    (
        "Lightning with rich",
        "Epoch 0/2  ━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 10/83 0:00:12 • 0:01:30 1.23it/s v_num: 0.000 train_loss: 1.800\n",
        Some(10),
        Some(10.0 / 83.0),
    ),
    (
        "Ultralytics",
        "      1/100      2.06G      2.681      4.744      3.814         37        640: 12% ━╸────────── 26/221 4.5it/s 5.8s<43.2s\n",
        Some(26),
        Some(26.0 / 221.0),
    ),
    (
        "Ultralytics with tqdm",
        "    176/300      5.64G      1.564     0.8106       0.85        162        640: 100%|██████████| 1618/1618 [05:16<00:00,  5.11it/s]\n",
        Some(1618),
        Some(1.0),
    ),
    (
        "Ultralytics, validation",
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100% ━━━━━━━━━━━━ 26/26 4.8it/s 5.5s\n",
        None,
        None,
    ),
    (
        "MMEngine",
        "06/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][10/83]  lr: 1.0e-04  eta: 0:01:30  memory: 2345  loss: 1.2\n",
        Some(10),
        Some(10.0 / 83.0),
    ),
    (
        "PyTorch's ImageNet example",
        "Epoch: [0][  10/5005]\tTime  0.512 ( 0.601)\tLoss 6.9e+00 (7.0e+00)\n",
        Some(10),
        Some(10.0 / 5005.0),
    ),
    ("timm", "Train: 0 [  10/83 ( 12%)]  Loss: 6.9 (6.95)  Time: 0.512s\n", Some(10), Some(10.0 / 83.0)),
    (
        "Megatron-LM",
        " iteration       10/     500 | consumed samples:           80 | elapsed time per iteration (ms): 123.4 |\n",
        Some(10),
        None,
    ),
    (
        "DeepSpeed",
        "[2024-07-24 02:13:16,632] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[[0.9, 0.999]]\n",
        Some(10),
        None,
    ),
    (
        "detectron2",
        "[06/01 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 1.2  lr: 0.001  max_mem: 2345M\n",
        Some(19),
        None,
    ),
    (
        "MLX",
        "Iter 10: Train loss 1.234, Learning Rate 1.000e-05, It/sec 1.2, Trained Tokens 1234, Peak mem 12.3 GB\n",
        Some(10),
        None,
    ),
    ("a script", "Step 1,000: loss 1.2\n", Some(1000), None),
    ("a script in capitals", "STEP 40 EPOCH 0.8 LOSS 1.2\n", Some(40), Some(0.8)),
    ("a script's settings", "max step 500, warmup step: 10, 0.5 s/step 3, time per step: 0.52\n", None, None),
    (
        "W&B's history",
        r#"{"_step": 7, "train/global_step": 70, "train/epoch": 0.3, "_runtime": 12.5}
"#,
        Some(70),
        Some(0.3),
    ),
];

fn board(output: &str) -> StepBoard {
    let board = StepBoard::default();
    OutputParser::new(board.clone(), &StepPatterns::default()).feed(output.as_bytes());
    board
}

#[test]
fn steps_and_epochs_are_read_as_each_tool_prints_them() {
    let wrong: Vec<String> = TOOLS
        .into_iter()
        .filter_map(|(tool, output, step, epoch)| {
            let found = board(output).now(&RunFacts::default());
            let wanted = Position { step, epoch };
            (found != wanted).then(|| format!("{tool}: {found:?}, not {wanted:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_trainer_says_of_its_dataset_is_taken_in() {
    let hf = "***** Running training *****\n  Num examples = 346,940\n  Num Epochs = 1\n  Instantaneous batch size per device = 10\n  \
              Total train batch size (w. parallel, distributed & accumulation) = 640\n  Gradient Accumulation steps = 8\n\
              ***** Running Evaluation *****\n  Num examples = 67\n  Batch size = 8\n";
    let unsloth = "   \\\\   /|    Num examples = 290,376 | Num Epochs = 2 | Total steps = 72,594\n\
                   O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4\n\
                   \\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8\n";
    for (output, rows, per_step) in [(hf, 346_940, 640), (unsloth, 290_376, 8)] {
        let facts = board(output).facts(&RunFacts::default());
        assert_eq!((facts.dataset_size, facts.samples_per_step), (Some(rows), Some(per_step)), "{output}");
        assert_eq!(board(output).now(&RunFacts::default()), Position::default(), "no step yet");
    }
}
