//! The energy that the machine takes, where its processors count it: RAPL, and NVML for graphics processors.
//!
//! A [`Meter`] reads the counters when it starts and when it is asked. They belong to the whole machine: what runs beside
//! a job is counted too.

use garden_memory::probe::gpu_devices;
use std::{fs, path::PathBuf};

/// The counters when the work began.
pub(crate) struct Meter {
    packages: Vec<Package>,
    /// Joules of each graphics processor that counts them.
    graphics: Vec<f64>,
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
        Self { packages: packages.collect(), graphics: graphics() }
    }

    /// Joules since the start; nothing where the machine counts none.
    pub(crate) fn joules(&self) -> Option<f64> {
        let taken = |package: &Package| {
            let now = number(&package.counter)?;
            Some(if now >= package.start { now - package.start } else { now + package.range - package.start })
        };
        let packages: Option<Vec<u64>> = self.packages.iter().map(taken).collect();
        let packages = packages.filter(|packages| !packages.is_empty());
        let packages = packages.map(|packages| packages.into_iter().sum::<u64>() as f64 / 1e6);
        let graphics: f64 =
            graphics().iter().zip(&self.graphics).map(|(now, start)| (now - start).max(0.0)).sum();
        match self.graphics.is_empty() {
            true => packages,
            false => Some(packages.unwrap_or(0.0) + graphics),
        }
    }
}

fn graphics() -> Vec<f64> {
    gpu_devices().into_iter().filter_map(|device| device.joules).collect()
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
