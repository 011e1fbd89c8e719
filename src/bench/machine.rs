//! The kind of machine, without anything that identifies its owner.

use std::fs;
use std::thread;

use crate::report::Machine;

impl Machine {
    /// The description of this machine.
    pub fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map(|(_, name)| name.trim());
        Machine {
            processor: processor.unwrap_or("unknown processor").to_owned(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}
