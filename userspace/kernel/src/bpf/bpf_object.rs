//! The file of the BPF object, and the sets of programs that are loaded from it: one at the start,
//! and another for each later level of the datapath log.

use std::io;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use model::DatapathLogLevel;
use sha2::{Digest as _, Sha256};

use crate::bpf::features::Probed;
use crate::bpf::pins::Pins;
use crate::bpf::program_cache::ProgramCache;
use crate::bpf::programs::{Capacities, Programs, constants, load};
use crate::error::{Attempt as _, Failed, OpenError};

/// The file of the BPF object, as it was at the start. Its bytes are not kept: it is read again for
/// another set.
pub(crate) struct BpfObject {
    path: PathBuf,
    digest: [u8; 32],
    capacities: Capacities,
}

impl BpfObject {
    /// Reads the file.
    pub(crate) fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
        let bytes = std::fs::read(path);
        Ok(bytes.attempt(|| format!("read the BPF object {}", path.display()))?)
    }

    /// Remembers which file has these bytes.
    pub(crate) fn new(path: &Path, bytes: &[u8], capacities: Capacities) -> Self {
        Self {
            path: path.to_owned(),
            digest: Sha256::digest(bytes).into(),
            capacities,
        }
    }

    /// Loads the programs with this level of the datapath log. The maps stay in the set's object.
    pub(crate) fn load(
        &self,
        bytes: &[u8],
        (pins, probed): (&Pins, &Probed),
        log: DatapathLogLevel,
    ) -> Result<Programs, OpenError> {
        let constants = constants(probed, self.capacities, log);
        let loaded = load(bytes, pins, &constants, self.capacities)?;
        crash::point_at("pin-tables");
        pins.verify()?;
        Programs::load(loaded, pins, &ProgramCache::new(pins, bytes, &constants))
    }

    /// Replaces `programs` with those of another level of the datapath log. Fails if the file has
    /// changed since the start: it would be of another version than the agent.
    pub(crate) fn load_again(
        &self,
        programs: &mut Programs,
        (pins, probed): (&Pins, &Probed),
        log: DatapathLogLevel,
    ) -> Result<(), OpenError> {
        let bytes = Self::read(&self.path)?;
        if Sha256::digest(&bytes)[..] != self.digest {
            let call = format!("use the BPF object {} again", self.path.display());
            let changed = io::Error::other("the file has changed: restart the agent");
            return Err(Failed::new(call, changed).into());
        }
        let constants = constants(probed, self.capacities, log);
        let loaded: Ebpf = load(&bytes, pins, &constants, self.capacities)?;
        programs.replace(loaded, &ProgramCache::new(pins, &bytes, &constants))
    }
}
