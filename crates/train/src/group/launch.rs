//! Whether this program was started many times at once.
//!
//! Takes the environment that launchers give to the processes they start, and gives how many there are. A program that cannot
//! join the others must know: each would train the whole run, in the same folder.

use std::env;

/// How launchers say how many processes they started: Open MPI, MPICH and Intel MPI, Slurm. A batch script has
/// `SLURM_NTASKS` as well, although it is one process, so Slurm is asked for the tasks of the step.
const SIZES: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpirun"), ("SLURM_STEP_NUM_TASKS", "srun")];

/// How this process was started together with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// How many processes there are.
    pub processes: usize,
    /// What started them.
    pub by: &'static str,
}

/// Why processes that were started together cannot train together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// This program cannot talk to others.
    #[error(
        "{} started {} processes of this program, which was built without MPI: each would train the whole run. Start one \
         process, or build the program with MPI",
        .0.by, .0.processes
    )]
    WithoutMpi(Launch),
    /// It talks by another MPI than the one that started it.
    #[error(
        "{} started {} processes of this program, but MPI knows of {found}: the program was built for another MPI than the \
         {} that started it",
        launch.by, launch.processes, launch.by
    )]
    OtherMpi {
        /// How it was started.
        launch: Launch,
        /// How many processes MPI sees.
        found: usize,
    },
}

/// How this process was started, if it is one of several.
pub fn launched() -> Option<Launch> {
    of(|name| env::var(name).ok())
}

fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
    SIZES.into_iter().find_map(|(name, by)| {
        let processes = variable(name)?.trim().parse().ok().filter(|processes| *processes > 1)?;
        Some(Launch { processes, by })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_they_leave_in_the_environment() {
        let with =
            |name: &'static str, value: &'static str| of(move |asked| (asked == name).then(|| value.into()));
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "8"), Some(Launch { processes: 8, by: "mpirun" }));
        assert_eq!(with("PMI_SIZE", "2"), Some(Launch { processes: 2, by: "mpirun" }));
        assert_eq!(with("SLURM_STEP_NUM_TASKS", "512"), Some(Launch { processes: 512, by: "srun" }));
        for value in ["1", "", "two"] {
            assert_eq!(with("OMPI_COMM_WORLD_SIZE", value), None);
        }
        // A batch script is one process, however many tasks its job may start.
        assert_eq!(with("SLURM_NTASKS", "8"), None);
    }
}
