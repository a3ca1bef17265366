use super::*;

fn read(json: &str) -> Result<ProcessorConfig, ProcessorError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join(FILE_NAME), json).expect("written");
    ProcessorConfig::from_dir(folder.path())
}

#[test]
fn both_spellings_of_the_limits_are_read() {
    let published = read(r#"{"min_pixels": 3136, "max_pixels": 50176}"#).expect("valid");
    let newer = read(r#"{"size": {"shortest_edge": 3136, "longest_edge": 50176}}"#).expect("valid");
    assert_eq!((published.min_pixels, published.max_pixels), (3136, 50176));
    assert_eq!(published, newer);
    let both = read(r#"{"max_pixels": 7000, "size": {"longest_edge": 50176}}"#).expect("valid");
    assert_eq!(both.max_pixels, 7000, "the direct key wins, as in HF");
}

/// As transformers 5.22 saves it, shortened.
const JOINT: &str = r#"{
        "image_processor": {
            "do_resize": true, "image_processor_type": "Qwen2VLImageProcessor", "merge_size": 2, "patch_size": 14,
            "resample": 3, "rescale_factor": 0.00392156862745098,
            "size": {"longest_edge": 50176, "shortest_edge": 3136}, "temporal_patch_size": 2
        },
        "processor_class": "Qwen2_5_VLProcessor",
        "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor", "min_frames": 4}
    }"#;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).expect("written"));
    folder
}

#[test]
fn what_transformers_5_saves_is_read() {
    let saved = folder(&[(JOINT_FILE, JOINT)]);
    let config = ProcessorConfig::from_dir(saved.path()).expect("valid");
    assert_eq!((config.min_pixels, config.max_pixels), (3136, 50176));
    // Version 4 writes a file of this name too, without the settings.
    let of_version_4 = [(FILE_NAME, r#"{"max_pixels": 50176}"#), (JOINT_FILE, r#"{"processor_class": "Q"}"#)];
    assert_eq!(ProcessorConfig::from_dir(folder(&of_version_4).path()).expect("valid"), config);
    let neither = ProcessorConfig::from_dir(folder(&[of_version_4[1]]).path()).expect_err("none");
    assert!(neither.to_string().contains("no preprocessor_config.json, and no processor_config.json"));
}

#[test]
fn two_files_must_agree() {
    let both = |own: &str| ProcessorConfig::from_dir(folder(&[(JOINT_FILE, JOINT), (FILE_NAME, own)]).path());
    assert!(both(r#"{"min_pixels": 3136, "max_pixels": 50176}"#).is_ok());
    let error = both(r#"{"max_pixels": 7000}"#).expect_err("7000 is not 50176").to_string();
    let said = "contradict each other: the largest image is 7000 and 50176";
    assert!(error.contains(said), "{error}");
}

#[test]
fn both_versions_can_read_what_is_written_again() {
    let saved = folder(&[(JOINT_FILE, JOINT)]);
    let files = files_for_transformers_4(saved.path()).expect("a joint file");
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["preprocessor_config.json", "video_preprocessor_config.json"]);
    let written: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let of_version_4 = ProcessorConfig::from_dir(folder(&written).path()).expect("valid");
    assert_eq!(of_version_4, ProcessorConfig::from_dir(saved.path()).expect("valid"));
    assert!(written[0].1.contains("Qwen2_5_VLProcessor"), "{}", written[0].1);
    let whole = folder(&[(JOINT_FILE, JOINT), written[0], written[1]]);
    assert_eq!(files_for_transformers_4(whole.path()).expect("nothing is missing"), []);
}

#[test]
fn the_user_overrides_the_checkpoint() {
    let limits = PixelLimits { min: None, max: Some(100_352) };
    let config = ProcessorConfig::default().with_limits(limits).expect("valid");
    assert_eq!((config.min_pixels, config.max_pixels), (3136, 100_352));
    let crossed = PixelLimits { min: Some(10), max: Some(5) };
    assert!(ProcessorConfig::default().with_limits(crossed).is_err());
}

#[test]
fn other_figures_of_the_channels_are_refused_by_name() {
    let published = r#"{"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#;
    let read_back = read(published).expect("valid");
    let default = ProcessorConfig::default();
    assert_eq!((read_back.mean, read_back.std), (default.mean, default.std));
    for (field, figures) in
        [("image_mean", "[0.5, 0.5, 0.5]"), ("image_std", "[0.26862954, 0.26130258, 0.5]")]
    {
        let error = read(&format!(r#"{{"{field}": {figures}}}"#)).expect_err(field).to_string();
        assert!(
            error.contains(&format!("{FILE_NAME}: {field} [")) && error.contains("0.5] is not"),
            "{error}"
        );
    }
}

#[test]
fn another_model_may_have_figures_of_its_own() {
    let figures = r#"{"image_mean": [0.5, 0.25, 0.125], "image_std": [0.5, 0.5, 0.75]}"#;
    let any = |text| ProcessorConfig::of_any_model(folder(&[(FILE_NAME, text)]).path(), Default::default());
    let config = any(figures).expect("valid");
    assert_eq!((config.mean, config.std), ([0.5, 0.25, 0.125], [0.5, 0.5, 0.75]));
    let error = any(r#"{"image_std": [0.5, 0.0, 0.5]}"#).expect_err("no division by 0").to_string();
    assert!(error.contains("must be above 0"), "{error}");
}

#[test]
fn another_limit_of_the_tokenizer_is_refused_unless_the_user_sets_it() {
    let of = |tokenizer: &str, limits| {
        let files = folder(&[(FILE_NAME, r#"{"max_pixels": 50176}"#), (TOKENIZER_FILE, tokenizer)]);
        ProcessorConfig::of_any_model(files.path(), limits).map_err(|error| error.to_string())
    };
    for agreeing in ["{}", r#"{"max_pixels": 50176}"#, r#"{"min_pixels": null}"#] {
        assert_eq!(of(agreeing, Default::default()).expect("valid").max_pixels, 50176, "{agreeing}");
    }
    let other = r#"{"max_pixels": 7000}"#;
    let error = of(other, Default::default()).expect_err("7000 is not 50176");
    assert!(
        error.contains("tokenizer_config.json says max_pixels 7000, and the image processor 50176"),
        "{error}"
    );
    let set = PixelLimits { min: None, max: Some(9000) };
    assert_eq!(of(other, set).expect("the user says it").max_pixels, 9000);
}

#[test]
fn without_a_limit_the_largest_image_is_that_of_the_class() {
    assert_eq!(read("{}").expect("valid").max_pixels, 1_003_520);
}

#[test]
fn another_class_with_the_same_settings_is_refused_by_name() {
    for class in ["Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2_5_VLImageProcessor"] {
        assert!(read(&format!(r#"{{"image_processor_type": "{class}"}}"#)).is_ok(), "{class}");
    }
    for class in ["Glm4vImageProcessor", "SiglipImageProcessorFast"] {
        let error = read(&format!(r#"{{"image_processor_type": "{class}"}}"#)).expect_err(class);
        assert!(error.to_string().contains(&format!("not as {class} does")), "{error}");
    }
}

#[test]
fn what_is_not_supported_is_refused() {
    for json in [
        r#"{"do_resize": false}"#,
        r#"{"resample": 2}"#,
        r#"{"rescale_factor": 1.0}"#,
        r#"{"patch_size": 0}"#,
        r#"{"merge_size": 0}"#,
        r#"{"image_std": [1.0, 0.0, 1.0]}"#,
        r#"{"min_pixels": -1}"#,
        "[]",
        "",
    ] {
        assert!(read(json).is_err(), "{json}");
    }
    assert!(ProcessorConfig::from_dir(Path::new("/nonexistent")).is_err());
}
