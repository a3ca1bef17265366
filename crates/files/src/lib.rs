//! Files and folders that appear whole or not at all, and survive a power cut.
//!
//! Takes a path and its content. A file is written under a temporary name beside its own, synced, renamed, and its
//! folder is synced too: a rename that the folder has not recorded is lost with the power. Readers never see half a
//! file, and of two writers at once the later one wins with a whole file.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("settings.json");
//! garden_files::write(&path, b"{}")?;
//!
//! let mut file = garden_files::PartialFile::create(&path)?;
//! std::io::Write::write_all(&mut file, b"{\"steps\": 3}")?;
//! assert_eq!(std::fs::read(&path)?, b"{}", "not there before it is whole");
//! file.keep()?;
//! assert_eq!(std::fs::read(&path)?, b"{\"steps\": 3}");
//! # Ok::<(), std::io::Error>(())
//! ```

mod folder;
mod partial;

pub use folder::{create_folder, rename, sync_folder};
pub use partial::{PartialFile, copy, write, write_with};
