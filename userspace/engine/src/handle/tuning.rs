//! Requests of the tuning plugin.

use model::{AttachmentKey, InterfaceSettings};

use super::Handle;
use crate::commands::Command;
use crate::{EngineError, Tune};

impl Handle {
    /// Changes settings of a pod's interface and sysctls of its namespace. Returns the settings
    /// that DEL will restore.
    pub async fn tune(&self, tune: Tune) -> Result<InterfaceSettings, EngineError> {
        self.query(|reply| Command::Tune(Box::new(tune), reply))
            .await
    }

    /// Returns an error unless a pod's interface has these settings.
    pub async fn check_settings(&self, tune: Tune) -> Result<(), EngineError> {
        self.query(|reply| Command::CheckSettings(Box::new(tune), reply))
            .await
    }

    /// Restores the previous settings of a pod's interface.
    pub async fn restore_settings(&self, tune: Tune) -> Result<(), EngineError> {
        self.execute(|reply| Command::RestoreSettings(Box::new(tune), reply))
            .await
    }

    /// Deletes the recorded settings of an interface that is gone; `keys` are those under which it
    /// may be recorded.
    pub async fn delete_settings_records(
        &self,
        keys: Vec<AttachmentKey>,
    ) -> Result<(), EngineError> {
        self.execute(|reply| Command::DeleteSettingsRecords(keys, reply))
            .await
    }
}
