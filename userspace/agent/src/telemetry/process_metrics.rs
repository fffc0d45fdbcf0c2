//! Metrics of the agent's process, under the names that Prometheus' client libraries share, and of
//! its build.

use std::sync::atomic::AtomicU64;

use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, WithCurrentSystemInfo as _};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::version::BUILD;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    commit: &'static str,
    api: &'static str,
    abi: u32,
}

/// Registers `build_info`, whose labels identify the build.
pub(super) fn register_build(registry: &mut Registry) {
    let build: Family<Build, Gauge> = Family::default();
    let labels = Build {
        version: BUILD.version,
        commit: BUILD.commit().unwrap_or("unknown"),
        api: api::VERSION,
        abi: BUILD.abi,
    };
    build.get_or_create(&labels).set(1);
    registry.register(
        "build_info",
        "Build of the agent; the value is always 1",
        build,
    );
}

/// What `/proc` has about the process.
struct Measured {
    cpu_seconds: f64,
    /// In seconds since 1970 (UTC).
    started_at: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_files: usize,
    max_files: u64,
}

impl Measured {
    fn read() -> ProcResult<Self> {
        let own = Process::myself()?;
        let stat = own.stat()?;
        let ticks = procfs::ticks_per_second();
        let seconds = |ticks_of: u64| precise(ticks_of) / precise(ticks);
        Ok(Self {
            cpu_seconds: seconds(stat.utime + stat.stime),
            started_at: precise(procfs::boot_time_secs()?) + seconds(stat.starttime),
            resident_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            open_files: own.fd_count()?,
            max_files: match own.limits()?.max_open_files.soft_limit {
                LimitValue::Value(files) => files,
                LimitValue::Unlimited => u64::MAX,
            },
        })
    }
}

/// Registers the metrics of the process. Without `/proc` there are none.
pub(super) fn register_process(registry: &mut Registry) {
    let Ok(measured) = Measured::read() else {
        return;
    };
    let cpu: Counter<f64, AtomicU64> = Counter::default();
    cpu.inc_by(measured.cpu_seconds);
    registry.register(
        "process_cpu_seconds",
        "CPU time of the agent, user and system, in seconds",
        cpu,
    );
    let files = u64::try_from(measured.open_files).unwrap_or(u64::MAX);
    for (name, help, value) in [
        (
            "process_start_time_seconds",
            "Start of the agent in seconds since 1970 (UTC)",
            measured.started_at,
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory of the agent in bytes",
            precise(measured.resident_bytes),
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory of the agent in bytes",
            precise(measured.virtual_bytes),
        ),
        (
            "process_open_fds",
            "Open file descriptors of the agent",
            precise(files),
        ),
        (
            "process_max_fds",
            "Maximum number of open file descriptors",
            precise(measured.max_files),
        ),
    ] {
        let gauge: Gauge<f64, AtomicU64> = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "samples are floating-point numbers"
)]
fn precise(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_used_time_and_memory_and_has_open_files() {
        let measured = Measured::read().unwrap();
        assert!(measured.resident_bytes > 1 << 20 && measured.virtual_bytes > 1 << 20);
        assert!(measured.open_files >= 3 && measured.max_files >= 3);
        assert!(measured.started_at > 1.7e9 && measured.cpu_seconds >= 0.0);
    }
}
