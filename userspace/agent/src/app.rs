//! State that all request handlers share.

use std::sync::{Arc, RwLock};
use std::time::Instant;

use engine::Handle;
use kernel::RuleReader;
use planner::DeclaredNetworks;

use crate::answers::AnswerMemory;
use crate::body::RequestMemory;
use crate::events::Events;
use crate::flows::FlowSource;
use crate::foreign_files::FileAccess;
use crate::installation::Installation;
use crate::lifecycle::Lifecycle;
use crate::losses::Losses;
use crate::metrics::Metrics;
use crate::rates::RateSampler;
use crate::spool::SpoolReplay;
use crate::start::Features;
use crate::uninstall::InstalledFiles;

/// State that all request handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) handle: Handle,
    /// Key of the pod annotation with port mappings.
    pub(crate) hostport_annotation: RwLock<Option<String>>,
    /// Bridges and subnets that networks of CNI configurations may use.
    pub(crate) declared_networks: RwLock<DeclaredNetworks>,
    pub(crate) request_memory: RequestMemory,
    pub(crate) answers: AnswerMemory,
    pub(crate) file_access: FileAccess,
    pub(crate) started: Instant,
    pub(crate) flows: FlowSource,
    pub(crate) rules: RuleReader,
    pub(crate) features: Features,
    pub(crate) replay: SpoolReplay,
    pub(crate) installed_files: InstalledFiles,
    pub(crate) installation: Installation,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Metrics,
    pub(crate) rate_sampler: RateSampler,
    pub(crate) losses: Losses,
    pub(crate) lifecycle: Lifecycle,
}
