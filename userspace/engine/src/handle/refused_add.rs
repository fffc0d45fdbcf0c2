//! Requests about ADDs that are refused for their result alone.

use model::Intent;

use super::Handle;
use crate::EngineError;
use crate::commands::Command;

impl Handle {
    /// See [`Engine::make_bridge`](crate::Engine::make_bridge).
    pub async fn make_bridge(&self, intent: Intent) -> Result<(), EngineError> {
        self.query(|reply| Command::MakeBridge(Box::new(intent), reply))
            .await
    }
}
