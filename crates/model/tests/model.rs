//! Forward and backward against Hugging Face and PEFT on small random models: hidden states, loss, every
//! gradient.

mod common;

use common::{Model as Golden, PLAIN, Packed, Tensors, adapter, goldens, load_model, lora_model, relative};
use garden_model::{
    Adapter, Checkpoint, LoraSettings, LossSums, MemoryPlan, Model, ModelConfig, ModelWeights, PackedBatch,
    PlanRequest, Precision, Recompute, Session, Shapes, Stage, target_pattern,
};

/// Large enough for every golden batch.
const SHAPES: Shapes = Shapes { tokens: 128, patches: 256, labels: 32 };

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE)
}

#[test]
fn hidden_states_are_hugging_faces() {
    for (golden, tensors) in goldens() {
        for adapter in ["lm", "both"] {
            let model = lora_model(&golden, adapter);
            let mut session = Session::new(&model, SHAPES, Recompute::Never).unwrap();
            for name in golden.batches.keys() {
                let packed = Packed::new(&golden, &golden.batch(name));
                let (width, last) = (golden.config().text.hidden_size, golden.config().text.layers - 1);
                let mut seen = 0;
                let mut watch = |stage: Stage, rows: &[f32]| {
                    let stored = match stage {
                        // Hugging Face's come before the windows are ordered.
                        Stage::Patches | Stage::Normed => return,
                        Stage::VisionBlock(index) => format!("{name}.{adapter}.vision.block.{index}"),
                        Stage::TextLayer(index) => format!("{name}.{adapter}.text.layer.{index}"),
                    };
                    let mut expected = tensors.f32(&stored);
                    if stage == Stage::TextLayer(last) {
                        // Only rows whose next token has a label go through the whole of the last layer.
                        let labels = packed.batch().labels;
                        let mut row = 0;
                        expected = expected
                            .chunks_exact(width)
                            .filter(|_| {
                                row += 1;
                                labels.get(row).is_some_and(|&label| label >= 0)
                            })
                            .flatten()
                            .copied()
                            .collect();
                    }
                    assert_eq!(rows.len(), expected.len(), "{stored}");
                    let difference = relative(rows, &expected);
                    assert!(difference < 1e-4, "{stored} differs by {difference}");
                    seen += 1;
                };
                session.observe(&model, &packed.batch(), &mut watch).unwrap();
                assert!(seen >= golden.config().text.layers);
            }
        }
    }
}

#[test]
fn loss_and_every_lora_gradient_are_pefts() {
    for (golden, tensors) in goldens() {
        for adapter in ["lm", "both"] {
            for recompute in [Recompute::Never, Recompute::Always] {
                let mut model = lora_model(&golden, adapter);
                let mut session = Session::new(&model, SHAPES, recompute).unwrap();
                for name in golden.batches.keys() {
                    let packed = Packed::new(&golden, &golden.batch(name));
                    session.clear_gradients();
                    let LossSums { loss, tokens, .. } =
                        session.step(&model, &packed.batch(), 1.0, 0).unwrap();
                    let expected = f64::from(tensors.f32(&format!("{name}.{adapter}.loss"))[0]);
                    let mean = loss / tokens as f64;
                    assert!(
                        (mean - expected).abs() < 1e-5 * expected,
                        "{name}.{adapter}: {mean}, not {expected}"
                    );
                    session.visit(&mut model, &mut |tensor| {
                        let stored = format!("{name}.{adapter}.grad.{}", tensor.name);
                        compare_gradient(&stored, tensor.gradient, &tensors, tokens);
                    });
                }
            }
        }
    }
}

/// The checkpoint is one that Hugging Face quantised and saved, merger and all; the loss and the gradient are
/// its own with the values that the 4-bit codes stand for, and the gradient has come through the merger.
#[test]
fn loss_and_gradient_on_a_checkpoint_quantised_by_hugging_face_are_its_own() {
    let dir = common::folder().join("bnb-nested");
    let (golden, _) = goldens().remove(0);
    let config = ModelConfig::read(&dir).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let weights = ModelWeights::load(&checkpoint, &config, Precision::AsStored, |_| {}).unwrap();
    let mut model = Model::with_adapter(config, weights, adapter(&golden, "both"));
    let mut session = Session::new(&model, SHAPES, Recompute::Never).unwrap();
    let packed = Packed::new(&golden, &golden.batch("one"));
    let LossSums { loss, tokens, .. } = session.step(&model, &packed.batch(), 1.0, 0).unwrap();
    let tensors = Tensors::open("bnb-dequantized.safetensors");
    let expected = f64::from(tensors.f32("one.both.loss")[0]);
    assert!((loss / tokens as f64 - expected).abs() < 1e-5 * expected, "{loss} of {tokens}, not {expected}");
    let before_the_merger = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight";
    let mut seen = false;
    session.visit(&mut model, &mut |tensor| {
        if tensor.name == before_the_merger {
            seen = true;
            compare_gradient(&format!("one.both.grad.{}", tensor.name), tensor.gradient, &tensors, tokens);
        }
    });
    assert!(seen, "{before_the_merger} is trained");
}

/// Ours is of the summed loss, the stored one of the mean.
fn compare_gradient(stored: &str, gradient: &[f32], tensors: &Tensors, tokens: usize) {
    // A batch without pictures gives the vision tower no gradient, which PyTorch does not store.
    if !tensors.names().contains(&stored.to_owned()) {
        assert!(gradient.iter().all(|&value| value == 0.0), "{stored} is not in the goldens");
        return;
    }
    let expected = tensors.f32(stored);
    if expected.iter().all(|&value| value == 0.0) {
        assert!(gradient.iter().all(|value| value.abs() < 1e-6), "{stored} is not zero");
        return;
    }
    let likeness = cosine(gradient, &expected);
    assert!(likeness > 0.99999, "{stored}: cosine {likeness}");
    let mean: Vec<f32> = gradient.iter().map(|value| value / tokens as f32).collect();
    let difference = relative(&mean, &expected);
    assert!(difference < 1e-3, "{stored} differs by {difference}");
}

#[test]
fn gradients_of_full_training_are_pytorchs() {
    let (golden, tensors) = goldens().into_iter().next().unwrap();
    let weights = load_model(&golden, PLAIN, Precision::F32);
    let mut model = Model::full(golden.config(), weights);
    for recompute in [Recompute::Never, Recompute::Always] {
        let mut session = Session::new(&model, SHAPES, recompute).unwrap();
        let packed = Packed::new(&golden, &golden.batch("mixed"));
        let LossSums { loss, tokens, .. } = session.step(&model, &packed.batch(), 1.0, 0).unwrap();
        let expected = f64::from(tensors.f32("mixed.full.loss")[0]);
        assert!((loss / tokens as f64 - expected).abs() < 1e-5 * expected);
        let mut shown = 0;
        session.visit(&mut model, &mut |tensor| {
            compare_gradient(&format!("mixed.full.grad.{}", tensor.name), tensor.gradient, &tensors, tokens);
            shown += 1;
        });
        assert_eq!(shown, garden_model::parameters(&golden.config()).len());
    }
}

#[test]
fn gradients_add_up_over_steps_and_repeat_to_the_bit() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let mut model = lora_model(&golden, "both");
    let packed = Packed::new(&golden, &golden.batch("mixed"));
    let gradients = |model: &mut Model, steps: usize| {
        let mut session = Session::new(model, SHAPES, Recompute::Never).unwrap();
        for _ in 0..steps {
            session.step(model, &packed.batch(), 0.5, 0).unwrap();
        }
        let mut all = Vec::new();
        session.visit(model, &mut |tensor| all.extend_from_slice(tensor.gradient));
        all
    };
    let (once, again, twice) = (gradients(&mut model, 1), gradients(&mut model, 1), gradients(&mut model, 2));
    assert_eq!(once, again);
    for (once, twice) in once.iter().zip(&twice) {
        assert!((2.0 * once - twice).abs() <= 1e-5 * twice.abs().max(1e-3));
    }
}

#[test]
fn a_budget_keeps_as_many_blocks_as_fit() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let model = lora_model(&golden, "both");
    let bytes = |recompute| Session::new(&model, SHAPES, recompute).map(|session| session.usage().peak_bytes);
    let (least, most) = (bytes(Recompute::Always).unwrap(), bytes(Recompute::Never).unwrap());
    assert!(least < most);
    let middle = bytes(Recompute::Within(least.midpoint(most))).unwrap();
    assert!(least <= middle && middle <= least.midpoint(most));
    assert_eq!(bytes(Recompute::Within(most)).unwrap(), most);
    let error = bytes(Recompute::Within(least - 4)).unwrap_err();
    assert!(error.to_string().contains("with every block recomputed"), "{error}");
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let model = lora_model(&golden, "lm");
    let small = Shapes { tokens: 8, ..SHAPES };
    let mut session = Session::new(&model, small, Recompute::Never).unwrap();
    let packed = Packed::new(&golden, &golden.batch("one"));
    let error = session.step(&model, &packed.batch(), 1.0, 0).unwrap_err();
    assert_eq!(error.to_string(), "the batch has 33 tokens, but memory was laid out for 8");
    let mut wrong = packed.batch();
    wrong.patches = &wrong.patches[1..];
    let error = session.step(&model, &wrong, 1.0, 0).unwrap_err();
    assert!(error.to_string().contains("bytes of patches"), "{error}");
    // Four grids of 2^62 patches each add up to nothing where sums wrap.
    let mut grids = wrong.grids.to_vec();
    grids.extend([[1, 1 << 31, 1 << 31]; 4]);
    let wrong = PackedBatch { grids: &grids, ..packed.batch() };
    let error = session.step(&model, &wrong, 1.0, 0).unwrap_err();
    assert!(error.to_string().contains("bytes of patches"), "{error}");
}

/// AdamW as PyTorch computes it: decay first, then the step with corrected moments.
fn adamw(values: &mut [f32], gradient: &[f32], moments: &mut [[f32; 2]], step: i32, rate: f32, decay: f32) {
    const BETAS: [f32; 2] = [0.9, 0.999];
    let corrections = BETAS.map(|beta| 1.0 - f64::from(beta).powi(step));
    for ((value, grad), [first, second]) in values.iter_mut().zip(gradient).zip(moments) {
        *value -= rate * decay * *value;
        *first += (grad - *first) * (1.0 - BETAS[0]);
        *second = BETAS[1] * *second + (1.0 - BETAS[1]) * grad * grad;
        let root = f64::from(*second).sqrt() / corrections[1].sqrt() + 1e-8;
        *value -= (f64::from(rate) / corrections[0] * f64::from(*first) / root) as f32;
    }
}

#[test]
fn a_hundred_steps_follow_hugging_face() {
    for (golden, _) in goldens() {
        let curve = &golden.curve;
        let mut adapter = adapter(&golden, &curve.adapter);
        adapter.pairs.iter_mut().for_each(|pair| pair.b.fill(0.0));
        let weights = load_model(&golden, PLAIN, Precision::AsStored);
        let mut model = Model::with_adapter(golden.config(), weights, adapter);
        let mut session = Session::new(&model, SHAPES, Recompute::Never).unwrap();
        let batches: Vec<Packed> =
            curve.batches.iter().map(|name| Packed::new(&golden, &golden.batch(name))).collect();
        let mut moments: Vec<Vec<[f32; 2]>> = Vec::new();
        session.visit(&mut model, &mut |tensor| moments.push(vec![[0.0; 2]; tensor.values.len()]));
        for (step, expected) in curve.losses.iter().enumerate() {
            session.clear_gradients();
            let batch = batches[step % batches.len()].batch();
            let labels = (1..batch.ids.len()).filter(|&at| batch.labels[at] >= 0).count();
            let sums = session.step(&model, &batch, 1.0 / labels as f32, 0).unwrap();
            assert_eq!(sums.tokens, labels);
            let loss = sums.loss / sums.tokens as f64;
            assert!((loss - expected).abs() < 1e-3, "step {step}: {loss}, not {expected}");
            // A batch without pictures leaves the vision tower without gradients, and PyTorch then skips it
            // whole.
            let pictures = !batch.grids.is_empty();
            let mut moments = moments.iter_mut();
            session.visit(&mut model, &mut |tensor| {
                let moments = moments.next().unwrap();
                if pictures || !tensor.name.contains("visual") {
                    let seen = steps_seen(&curve.batches, &golden, step, tensor.name.contains("visual"));
                    adamw(
                        tensor.values,
                        tensor.gradient,
                        moments,
                        seen,
                        curve.learning_rate,
                        curve.weight_decay,
                    );
                }
            });
        }
    }
}

/// Steps up to and including `step` in which a tensor got a gradient: what its bias correction counts.
fn steps_seen(batches: &[String], golden: &Golden, step: usize, vision: bool) -> i32 {
    let has_pictures =
        |at: usize| golden.batch(&batches[at % batches.len()]).iter().any(|row| !row.grids.is_empty());
    (0..=step).filter(|&at| !vision || has_pictures(at)).count() as i32
}

fn request<'a>(golden: &Golden, lora: &'a LoraSettings) -> PlanRequest<'a> {
    PlanRequest {
        held: golden.config().stored(),
        lora: Some(lora),
        optimizer: 8 * lora.parameters(&golden.config()).unwrap(),
        gradient_sum: 0,
        shapes: SHAPES,
        batches: 0,
        process: 0,
    }
}

#[test]
fn the_plan_is_the_arenas_own_layout() {
    for (golden, _) in goldens() {
        let model = lora_model(&golden, "both");
        let settings = &model.adapter().unwrap().settings;
        for recompute in [Recompute::Never, Recompute::Always] {
            let request = request(&golden, settings);
            let plan = MemoryPlan::new(&golden.config(), &request, recompute).unwrap();
            let session = Session::new(&model, SHAPES, recompute).unwrap();
            assert_eq!(plan.arena(), session.usage().peak_bytes);
            let again = Session::new(&model, SHAPES, plan.session_recompute()).unwrap();
            assert_eq!(again.usage(), session.usage());
            let recomputed = if recompute == Recompute::Always { plan.blocks } else { 0 };
            assert_eq!((plan.recomputed_blocks, plan.recompute > 0), (recomputed, recomputed > 0));
            assert_eq!(plan.gradients, 4 * model.trainable_values());
            let values: usize =
                garden_model::parameters(&golden.config()).iter().map(|parameter| parameter.elements()).sum();
            assert_eq!(plan.weights, 4 * values);
            assert_eq!(plan.total(), plan.parts().iter().map(|(_, bytes)| bytes).sum::<usize>());
        }
    }
}

/// A model whose adapter drops a fifth of its inputs, and all gradients of one step with `noise`.
fn dropping(golden: &Golden) -> Model {
    let mut model = lora_model(golden, "both");
    model.adapter_mut().unwrap().settings.dropout = 0.2;
    model
}

fn step_with_noise(model: &mut Model, packed: &Packed, recompute: Recompute, noise: u64) -> (f64, Vec<f32>) {
    let mut session = Session::new(model, SHAPES, recompute).unwrap();
    let loss = session.step(model, &packed.batch(), 1.0, noise).unwrap().loss;
    let mut gradients = Vec::new();
    session.visit(model, &mut |tensor| gradients.extend_from_slice(tensor.gradient));
    (loss, gradients)
}

#[test]
fn dropout_depends_on_its_number_and_on_nothing_else() {
    for (golden, _) in goldens() {
        let mut model = dropping(&golden);
        let packed = Packed::new(&golden, &golden.batch("mixed"));
        let kept = step_with_noise(&mut model, &packed, Recompute::Never, 7);
        assert_eq!(kept, step_with_noise(&mut model, &packed, Recompute::Always, 7), "recomputed");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let alone = pool.install(|| step_with_noise(&mut model, &packed, Recompute::Never, 7));
        assert_eq!(kept, alone, "on one thread");
        let other = step_with_noise(&mut model, &packed, Recompute::Never, 8);
        assert!((kept.0 - other.0).abs() > 1e-3, "another number gives the same loss {}", kept.0);
        // Evaluation drops nothing.
        let mut session = Session::new(&model, SHAPES, Recompute::Never).unwrap();
        let whole = session.evaluate(&model, &packed.batch()).unwrap().loss;
        model.adapter_mut().unwrap().settings.dropout = 0.0;
        assert_eq!(whole, session.evaluate(&model, &packed.batch()).unwrap().loss);
        assert!((kept.0 - whole).abs() > 1e-3);
    }
}

#[test]
fn gradients_under_dropout_are_those_of_finite_differences() {
    for (golden, _) in goldens() {
        let mut model = dropping(&golden);
        let packed = Packed::new(&golden, &golden.batch("mixed"));
        let (_, gradients) = step_with_noise(&mut model, &packed, Recompute::Never, 3);
        // Along the gradients of one kind of tensor at a time, so that a wrong side cannot hide behind a
        // large one.
        for part in ["visual.*lora_A", "visual.*lora_B", "language_model.*lora_A", "language_model.*lora_B"] {
            let (tower, side) = part.split_once(".*").unwrap();
            let (slope, square) = slope_along(&mut model, &packed, &gradients, tower, side);
            assert!((slope / square - 1.0).abs() < 5e-3, "{part}: slope {slope}, gradient says {square}");
        }
    }
}

/// A model with pairs at these layers, none of whose halves is zero.
fn with_pairs(golden: &Golden, target_modules: &str, dropout: f32) -> Model {
    let settings = adapter(golden, "both").settings;
    let settings = LoraSettings { target_modules: target_pattern(target_modules), dropout, ..settings };
    let mut adapter = Adapter::fresh(&golden.config(), settings, 5).unwrap();
    for pair in &mut adapter.pairs {
        pair.b.iter_mut().enumerate().for_each(|(i, b)| *b = 0.02 * ((i * 7 % 11) as f32 - 5.0));
    }
    Model::with_adapter(golden.config(), load_model(golden, PLAIN, Precision::AsStored), adapter)
}

/// PEFT's `all-linear` has pairs at the merger, too: beside others and alone, with dropout and without.
#[test]
fn gradients_of_pairs_at_the_merger_are_those_of_finite_differences() {
    for (golden, _) in goldens() {
        let packed = Packed::new(&golden, &golden.batch("mixed"));
        for (targets, dropout) in
            [("all-linear", 0.2), ("all-linear", 0.0), ("mlp.0,mlp.2", 0.2), ("mlp.2", 0.0)]
        {
            let mut model = with_pairs(&golden, targets, dropout);
            let (_, gradients) = step_with_noise(&mut model, &packed, Recompute::Never, 3);
            let again = step_with_noise(&mut model, &packed, Recompute::Always, 3);
            assert_eq!(gradients, again.1, "{targets}: recomputed");
            for side in ["lora_A", "lora_B"] {
                let (slope, square) = slope_along(&mut model, &packed, &gradients, "merger", side);
                assert!(square > 0.0, "{targets}: {side} gets no gradient");
                assert!(
                    (slope / square - 1.0).abs() < 5e-3,
                    "{targets}, dropout {dropout}, {side}: slope {slope}, gradient says {square}"
                );
            }
        }
    }
}

/// The slope of the loss along the gradients of these tensors, and the square of their length, which it
/// should be.
fn slope_along(model: &mut Model, packed: &Packed, gradients: &[f32], place: &str, side: &str) -> (f64, f64) {
    let mut chosen = Vec::new();
    let session = Session::new(model, SHAPES, Recompute::Never).unwrap();
    session.visit(model, &mut |tensor| {
        let inside = tensor.name.contains(place) && tensor.name.contains(side);
        chosen.extend(std::iter::repeat_n(inside, tensor.values.len()));
    });
    let along = |(&grad, &inside): (&f32, &bool)| if inside { grad } else { 0.0 };
    let direction: Vec<f32> = gradients.iter().zip(&chosen).map(along).collect();
    let square: f64 = direction.iter().map(|&grad| f64::from(grad).powi(2)).sum();
    let step = (2e-3 / square.sqrt()) as f32;
    let mut loss_at = |offset: f32| {
        move_along(model, &direction, offset);
        let (loss, _) = step_with_noise(model, packed, Recompute::Never, 3);
        move_along(model, &direction, -offset);
        loss
    };
    ((loss_at(step) - loss_at(-step)) / (2.0 * f64::from(step)), square)
}

/// Adds `offset * direction` to all that is trained.
fn move_along(model: &mut Model, direction: &[f32], offset: f32) {
    let session = Session::new(model, SHAPES, Recompute::Never).unwrap();
    let mut direction = direction.iter();
    session.visit(model, &mut |tensor| {
        tensor.values.iter_mut().zip(&mut direction).for_each(|(value, along)| *value += offset * along);
    });
}

/// A pair that is trained alone has the gradient it has among pairs that add nothing.
#[test]
fn any_choice_of_layers_trains_those_layers_and_no_others() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let packed = Packed::new(&golden, &golden.batch("mixed"));
    let patterns = [
        r".*language_model\.layers\.1\.self_attn\.(q|v)_proj",
        r".*language_model\..*mlp\.down_proj",
        r".*visual\.blocks\.1\.attn\.qkv",
        r".*visual\..*mlp\.(gate|up)_proj|.*layers\.2\.self_attn\.o_proj",
    ];
    for pattern in patterns {
        let whole = adapter(&golden, "both");
        let mut chosen = whole.clone();
        chosen.settings.target_modules = pattern.to_owned();
        let targets = chosen.settings.targets(&golden.config()).unwrap();
        let trained = |module: &str| targets.iter().any(|linear| linear.module == module);
        chosen.pairs.retain(|pair| trained(&pair.module));
        assert_eq!(chosen.pairs.len(), targets.len());
        let mut others_silent = whole;
        let silent = others_silent.pairs.iter_mut().filter(|pair| !trained(&pair.module));
        silent.for_each(|pair| pair.b.fill(0.0));
        let gradients = |adapter, recompute| {
            let weights = load_model(&golden, PLAIN, Precision::AsStored);
            let mut model = Model::with_adapter(golden.config(), weights, adapter);
            let mut session = Session::new(&model, SHAPES, recompute).unwrap();
            session.step(&model, &packed.batch(), 1.0, 0).unwrap();
            let mut all = std::collections::BTreeMap::new();
            session.visit(&mut model, &mut |tensor| {
                all.insert(tensor.name.to_owned(), tensor.gradient.to_vec());
            });
            all
        };
        let alone = gradients(chosen.clone(), Recompute::Always);
        assert_eq!(alone, gradients(chosen, Recompute::Never), "{pattern}: kept");
        let among = gradients(others_silent, Recompute::Always);
        assert_eq!(alone.len(), 2 * targets.len());
        for (name, gradient) in alone {
            assert!(gradient.iter().any(|&value| value != 0.0), "{pattern}: {name} gets no gradient");
            let difference = relative(&gradient, &among[&name]);
            assert!(difference < 1e-4, "{pattern}: {name} differs by {difference}");
        }
    }
}

/// The memory of the longest batch is that of every shorter one, however its rows are cut into chunks and
/// tiles.
#[test]
fn a_session_takes_every_batch_up_to_its_longest() {
    const LONGEST: usize = 700;
    let (golden, _) = goldens().into_iter().next().unwrap();
    let model = lora_model(&golden, "both");
    let shapes = Shapes { tokens: LONGEST, patches: 0, labels: LONGEST - 1 };
    let mut session = Session::new(&model, shapes, Recompute::Always).unwrap();
    for tokens in (2..LONGEST).step_by(83).chain([512, 513, LONGEST]) {
        let ids: Vec<u32> = (0..tokens as u32).map(|at| at % 60).collect();
        for labelled in [1, tokens / 2, tokens - 1] {
            let label = |at: usize| if at >= tokens - labelled { ids[at] as i32 } else { -100 };
            let labels: Vec<i32> = (0..tokens).map(label).collect();
            let segments = [0, tokens];
            let batch =
                PackedBatch { ids: &ids, labels: &labels, segments: &segments, patches: &[], grids: &[] };
            let mut alone =
                Session::new(&model, Shapes { tokens, patches: 0, labels: labelled }, Recompute::Always)
                    .unwrap();
            let sums = session.step(&model, &batch, 1.0, 0).unwrap();
            assert_eq!(sums, alone.step(&model, &batch, 1.0, 0).unwrap(), "{labelled} labels of {tokens}");
            assert_eq!(sums.tokens, labelled);
        }
    }
}

#[test]
fn nothing_is_kept_below_the_lowest_trained_layer() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let config = golden.config();
    let layers = config.text.layers;
    let plan = |pattern: &str| {
        let mut lora = adapter(&golden, "both").settings;
        lora.target_modules = pattern.to_owned();
        let request = request(&golden, &lora);
        let plan = MemoryPlan::new(&config, &request, Recompute::Never).unwrap();
        let mut chosen = adapter(&golden, "both");
        let targets = lora.targets(&config).unwrap();
        chosen.pairs.retain(|pair| targets.iter().any(|linear| linear.module == pair.module));
        chosen.settings = lora;
        let weights = load_model(&golden, PLAIN, Precision::AsStored);
        let session = Session::new(
            &Model::with_adapter(config.clone(), weights, chosen),
            SHAPES,
            plan.session_recompute(),
        );
        assert_eq!(plan.arena(), session.unwrap().usage().peak_bytes, "{pattern}");
        plan
    };
    let all = plan(r".*language_model\..*q_proj");
    let last = plan(&format!(r".*language_model\.layers\.{}\..*q_proj", layers - 1));
    let first = plan(r".*language_model\.layers\.0\..*q_proj");
    assert_eq!((all.blocks, first.blocks, last.blocks), (layers, layers, 1));
    assert_eq!(first.activations, all.activations);
    assert!(last.activations < all.activations, "{} of {}", last.activations, all.activations);
    let through_vision = plan(r".*visual\.blocks\.1\.attn\.qkv");
    assert_eq!(through_vision.blocks, layers + config.vision.depth - 1);
}

#[test]
fn every_precision_trains_and_loses_only_what_its_bits_lose() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let packed = Packed::new(&golden, &golden.batch("mixed"));
    let step = |precision| {
        let weights = load_model(&golden, PLAIN, precision);
        let mut model = Model::with_adapter(golden.config(), weights, adapter(&golden, "both"));
        step_with_noise(&mut model, &packed, Recompute::Never, 0)
    };
    let (loss, gradients) = step(Precision::AsStored);
    assert_eq!(step(Precision::F32), (loss, gradients.clone()), "the same values, read instead of mapped");
    let cases =
        [(Precision::Bits16, 0.999, 5e-3), (Precision::Bits8, 0.99, 2e-2), (Precision::Bits4, 0.6, 0.2)];
    for (precision, likeness, tolerance) in cases {
        let (rounded_loss, rounded) = step(precision);
        assert_ne!(rounded_loss, loss, "{precision:?} rounds nothing");
        assert!((rounded_loss / loss - 1.0).abs() < tolerance, "{precision:?}: {rounded_loss}, not {loss}");
        let found = cosine(&rounded, &gradients);
        assert!(found > likeness, "{precision:?}: cosine {found}");
    }
}
