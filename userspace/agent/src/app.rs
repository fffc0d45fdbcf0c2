//! State that all request handlers share.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine::Handle;
use kernel::RuleReader;

use crate::cni::foreign_files::FileAccess;
use crate::cni::refused_adds::RefusedAdds;
use crate::cni::spool::SpoolReplay;
use crate::config::live::LiveConfig;
use crate::http::answers::AnswerMemory;
use crate::http::body::RequestMemory;
use crate::http::flows::FlowSource;
use crate::http::why::NodeSource;
use crate::process::installation::Installation;
use crate::process::lifecycle::Lifecycle;
use crate::process::offload::OffloadCounts;
use crate::process::start::Features;
use crate::process::uninstall::InstalledFiles;
use crate::telemetry::datapath_log::DatapathLogReader;
use crate::telemetry::drop_events::DropEvents;
use crate::telemetry::events::Events;
use crate::telemetry::losses::Losses;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::rates::RateSampler;
use crate::telemetry::traces::Traces;

/// State that all request handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) handle: Handle,
    pub(crate) config: LiveConfig,
    pub(crate) request_memory: RequestMemory,
    pub(crate) answers: AnswerMemory,
    pub(crate) file_access: FileAccess,
    pub(crate) started: Instant,
    pub(crate) flows: FlowSource,
    /// Reader of the node's state for explanations.
    pub(crate) node: NodeSource,
    pub(crate) rules: RuleReader,
    /// Counts of the offload table, as last read.
    pub(crate) offload_counts: Arc<Mutex<OffloadCounts>>,
    pub(crate) features: Features,
    pub(crate) refused_adds: RefusedAdds,
    pub(crate) replay: SpoolReplay,
    pub(crate) installed_files: InstalledFiles,
    pub(crate) installation: Installation,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    pub(crate) rate_sampler: RateSampler,
    pub(crate) losses: Losses,
    pub(crate) drop_events: DropEvents,
    pub(crate) datapath_log: DatapathLogReader,
    pub(crate) lifecycle: Lifecycle,
}
