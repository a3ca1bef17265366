//! The energy that the machine takes, where its processor counts it (RAPL).
//!
//! A [`Meter`] reads the packages' counters when it starts and when it is asked. The counters belong to the whole
//! machine: what runs beside a job is counted too.

use std::{fs, path::PathBuf};

/// The counters when the work began.
pub(crate) struct Meter {
    packages: Vec<Package>,
}

struct Package {
    counter: PathBuf,
    /// Where the counter begins again, in microjoules.
    range: u64,
    start: u64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self::of(PathBuf::from("/sys/class/powercap"))
    }

    fn of(root: PathBuf) -> Self {
        let packages = fs::read_dir(root).into_iter().flatten().flatten().filter_map(|entry| {
            // `intel-rapl:0` is a package, `intel-rapl:0:0` a part of it.
            let name = entry.file_name().into_string().ok()?;
            if !name.contains("rapl") || name.matches(':').count() != 1 {
                return None;
            }
            let counter = entry.path().join("energy_uj");
            let range = number(&entry.path().join("max_energy_range_uj"))?;
            Some(Package { start: number(&counter)?, counter, range })
        });
        Self { packages: packages.collect() }
    }

    /// Joules since the start; nothing where the machine counts none.
    pub(crate) fn joules(&self) -> Option<f64> {
        let taken = |package: &Package| {
            let now = number(&package.counter)?;
            Some(if now >= package.start { now - package.start } else { now + package.range - package.start })
        };
        let all: Option<Vec<u64>> = self.packages.iter().map(taken).collect();
        all.filter(|all| !all.is_empty()).map(|all| all.into_iter().sum::<u64>() as f64 / 1e6)
    }
}

fn number(path: &PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_and_counters_may_begin_again() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, uj: u64| {
            let folder = root.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("energy_uj"), format!("{uj}\n")).unwrap();
            fs::write(folder.join("max_energy_range_uj"), "10000000\n").unwrap();
        };
        write("intel-rapl:0", 9_000_000);
        write("intel-rapl:1", 1_000_000);
        write("intel-rapl:0:0", 0);
        let meter = Meter::of(root.path().to_owned());
        write("intel-rapl:0", 1_000_000);
        write("intel-rapl:1", 4_000_000);
        assert_eq!(meter.joules(), Some(5.0));
        assert_eq!(Meter::of(root.path().join("none")).joules(), None);
    }
}
