//! GPU memory of each process and of each device, where NVIDIA's library is installed.
//!
//! Gives bytes by PID, summed over devices, and what the devices themselves count. Without the library or a device there are no figures and no
//! error. Inside a container NVML reports the host's PIDs, which match no process here: the tree then has no
//! GPU figure rather than a wrong one.

use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory};
use std::{
    collections::HashMap,
    sync::LazyLock,
    time::{Duration, Instant},
};

/// A query takes milliseconds in the driver, so the answer is kept for this long.
const KEEP: Duration = Duration::from_secs(2);

/// A graphics processor, as NVML knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuDevice {
    /// The model's name.
    pub name: String,
    /// Its memory in bytes.
    pub total: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Joules since its driver was loaded, where it counts them.
    pub joules: Option<f64>,
}

/// The graphics processors of this machine; none where there is no NVML.
pub fn gpu_devices() -> Vec<GpuDevice> {
    static NVML: LazyLock<Option<Nvml>> = LazyLock::new(|| Nvml::init().ok());
    let Some(nvml) = &*NVML else { return Vec::new() };
    let devices = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| {
        let device = nvml.device_by_index(index).ok()?;
        let memory = device.memory_info().ok()?;
        Some(GpuDevice {
            name: device.name().ok()?,
            total: memory.total,
            free: memory.free,
            joules: device.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1e3),
        })
    });
    devices.collect()
}

/// NVML, loaded at run time.
pub(super) struct Gpu {
    nvml: Nvml,
    answer: HashMap<i32, u64>,
    asked: Option<Instant>,
}

impl Gpu {
    /// `None` without complaint where there is no NVML.
    pub fn load() -> Option<Self> {
        Some(Self { nvml: Nvml::init().ok()?, answer: HashMap::new(), asked: None })
    }

    /// Bytes by PID.
    pub fn by_process(&mut self) -> &HashMap<i32, u64> {
        if self.asked.is_none_or(|asked| asked.elapsed() >= KEEP) {
            self.answer = sum_by_process(self.query());
            self.asked = Some(Instant::now());
        }
        &self.answer
    }

    fn query(&self) -> Vec<(u32, u64)> {
        let devices = (0..self.nvml.device_count().unwrap_or(0))
            .filter_map(|index| self.nvml.device_by_index(index).ok());
        let mut found = Vec::new();
        for device in devices {
            let compute = device.running_compute_processes().unwrap_or_default();
            let graphics = device.running_graphics_processes().unwrap_or_default();
            // A process that does both is listed twice with the same figure.
            let mut on_device: HashMap<u32, u64> = HashMap::new();
            for process in compute.iter().chain(&graphics) {
                if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
                    let most = on_device.entry(process.pid).or_default();
                    *most = bytes.max(*most);
                }
            }
            found.extend(on_device);
        }
        found
    }
}

/// Adds up what a process holds on several devices.
fn sum_by_process(found: Vec<(u32, u64)>) -> HashMap<i32, u64> {
    let mut sums = HashMap::new();
    for (pid, bytes) in found {
        if let Ok(pid) = i32::try_from(pid) {
            *sums.entry(pid).or_default() += bytes;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    #[test]
    fn devices_add_up() {
        let sums = super::sum_by_process(vec![(7, 100), (8, 5), (7, 50), (u32::MAX, 1)]);
        assert_eq!(sums, [(7, 150), (8, 5)].into());
    }
}
