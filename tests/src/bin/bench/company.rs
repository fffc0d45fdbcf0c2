//! Rules of other software on the measured nodes: recorded from kube-proxy and Docker, and restored
//! before the first pod is attached.

use anyhow::Result;
use clap::ValueEnum;
use e2e::Machine;
use e2e::company::RecordedRules;

use crate::topology::Tables;

/// Software whose rules the measured nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Company {
    /// None.
    #[value(name = "none")]
    Alone,
    /// kube-proxy with ten services.
    KubeProxy,
    /// Docker with one container that publishes a port.
    Docker,
}

impl Company {
    /// All, in the order of measurement.
    pub(crate) const ALL: [Self; 3] = [Self::Alone, Self::KubeProxy, Self::Docker];

    /// Returns the name in reports, if there is other software.
    pub(crate) fn name(self) -> Option<&'static str> {
        self.rules().map(|(name, _)| name)
    }

    /// Restores the rules on `node`, in tables of this kind.
    pub(crate) fn join(self, node: &Machine, tables: Tables) -> Result<()> {
        match self.rules() {
            Some((_, rules)) => rules.restore_by(node, tables.suffix()),
            None => Ok(()),
        }
    }

    fn rules(self) -> Option<(&'static str, RecordedRules)> {
        match self {
            Self::Alone => None,
            Self::KubeProxy => Some(("kube-proxy", RecordedRules::KubeProxy)),
            Self::Docker => Some(("Docker", RecordedRules::Docker)),
        }
    }
}
