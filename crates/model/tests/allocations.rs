//! After the first step nothing of a tensor's size is allocated; the arena says what it holds.

use garden_engine::CountingAllocator;
use garden_model::{
    Adapter, Checkpoint, LayerGroups, LoraSettings, Model, ModelWeights, PackedBatch, Precision, Recompute,
    Session, Shapes,
    init::{Plan, Preset},
};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// A row of the residual stream of this batch takes 262 kB, a row of its MLP 720 kB.
const TOKENS: usize = 512;
const SIDE: usize = 32;
/// Lists of positions and bounds are of this size; no tensor is.
const LARGEST: usize = 40_000;

#[test]
fn steps_after_the_first_allocate_nothing_of_a_tensors_size() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(Preset::Tiny).unwrap();
    plan.write(&folder.path().join("model"), 1, |_| {}).unwrap();
    let config = plan.config().clone();
    let checkpoint = Checkpoint::open(&folder.path().join("model")).unwrap();
    let weights = ModelWeights::load(&checkpoint, &config, Precision::Bits4, |_| {}).unwrap();
    let target_modules = LayerGroups::default().pattern().unwrap();
    let settings = LoraSettings { rank: 8, alpha: 8.0, dropout: 0.1, rslora: false, target_modules };
    let adapter = Adapter::fresh(&config, settings, 1).unwrap();
    let model = Model::with_adapter(config.clone(), weights, adapter);

    let pictures = SIDE * SIDE / 4;
    let mut ids = vec![config.image_token_id; pictures];
    ids.extend((0..(TOKENS - pictures) as u32).map(|at| 5 + at % 900));
    let labels: Vec<i32> = (0..TOKENS).map(|at| if at < pictures { -100 } else { ids[at] as i32 }).collect();
    let patches: Vec<u8> = (0..SIDE * SIDE * 588).map(|at| (at % 251) as u8).collect();
    let batch = PackedBatch {
        ids: &ids,
        labels: &labels,
        segments: &[0, TOKENS],
        patches: &patches,
        grids: &[[1, SIDE, SIDE]],
    };
    let shapes = Shapes { tokens: TOKENS, patches: SIDE * SIDE, labels: TOKENS };
    for recompute in [Recompute::Never, Recompute::Always] {
        let mut session = Session::new(&model, shapes, recompute).unwrap();
        assert_eq!(session.usage().live_bytes, 0, "nothing is in use before a step");
        session.step(&model, &batch, 1.0, 0).unwrap();
        HEAP.take();
        for noise in 1..4 {
            session.clear_gradients();
            session.step(&model, &batch, 1.0, noise).unwrap();
            let (allocations, largest) = HEAP.take();
            assert!(allocations > 0, "the allocator counts");
            assert!(largest < LARGEST, "{recompute:?}, step {noise}: an allocation of {largest} bytes");
        }
        let usage = session.usage();
        assert_eq!((usage.live_bytes, usage.live_buffers), (0, 0), "nothing is in use after a step");
        assert!(usage.peak_bytes > 10 * LARGEST);
        let planned_for_it = usage.peak_bytes / 2..=usage.peak_bytes;
        assert!(planned_for_it.contains(&usage.fullest_bytes), "what the step held stays known: {usage:?}");
        assert!(usage.fullest_buffers > 10, "{usage:?}");
    }
}
