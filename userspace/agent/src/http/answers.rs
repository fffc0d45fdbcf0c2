//! Large responses: limits of the number that is built at a time, and of the memory of those that
//! clients have not read yet. So many requests at once use no more memory than a few.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use cni::Error;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Number of responses that are built at a time.
const MAX_BUILDERS: usize = 2;
/// Bytes per semaphore permit.
const UNIT: usize = 1 << 10;
/// Maximum memory of all responses that wait for their clients, in bytes. A longer one waits until
/// it is the only one.
const MEMORY_LIMIT: usize = 16 << 20;
/// Size in bytes from which a response gives its memory back to the kernel: what it was made from
/// has a multiple of it.
const LARGE: usize = 256 << 10;
/// Time that a request waits for other responses.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The memory for large responses, shared by all requests.
#[derive(Clone, Debug)]
pub(crate) struct AnswerMemory {
    builders: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// Permission to build a large response.
pub(crate) struct Turn {
    bytes: Arc<Semaphore>,
    _permit: OwnedSemaphorePermit,
}

/// A response body, with its memory reserved until it is sent.
struct HeldBytes {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        if self.bytes.len() >= LARGE {
            self.bytes = Vec::new();
            kernel::release_free_memory();
        }
    }
}

impl Default for AnswerMemory {
    fn default() -> Self {
        Self {
            builders: Arc::new(Semaphore::new(MAX_BUILDERS)),
            bytes: Arc::new(Semaphore::new(MEMORY_LIMIT / UNIT)),
        }
    }
}

impl AnswerMemory {
    /// Waits until a response may be built.
    pub(crate) async fn turn(&self) -> Result<Turn, Error> {
        Ok(Turn {
            bytes: Arc::clone(&self.bytes),
            _permit: acquire(&self.builders, 1).await?,
        })
    }
}

impl Turn {
    /// Returns a JSON response.
    pub(crate) async fn json(self, value: &impl Serialize) -> Result<Response, Error> {
        let bytes =
            serde_json::to_vec(value).map_err(|error| Error::internal(error.to_string()))?;
        self.respond("application/json", bytes).await
    }

    /// Returns a response once there is memory for it.
    pub(crate) async fn respond(
        self,
        content_type: &'static str,
        bytes: Vec<u8>,
    ) -> Result<Response, Error> {
        let units = bytes.len().div_ceil(UNIT).min(MEMORY_LIMIT / UNIT);
        let held = HeldBytes {
            _permit: acquire(&self.bytes, units).await?,
            bytes,
        };
        let body = Body::from(Bytes::from_owner(held));
        Ok(([(CONTENT_TYPE, content_type)], body).into_response())
    }
}

/// Acquires permits. That others keep them too long is an error with code 11.
pub(crate) async fn acquire(
    semaphore: &Arc<Semaphore>,
    permits: usize,
) -> Result<OwnedSemaphorePermit, Error> {
    let permits = u32::try_from(permits).unwrap_or(u32::MAX);
    let acquired = Arc::clone(semaphore).acquire_many_owned(permits);
    let none = || Error::try_again_later("other large responses use all memory for responses");
    let acquired = timeout(WAIT_TIMEOUT, acquired).await.map_err(|_| none())?;
    acquired.map_err(|_| none())
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    /// The paused clock advances whenever all tasks are idle.
    #[tokio::test(start_paused = true)]
    async fn responses_beyond_the_memory_limit_wait_and_are_then_refused_with_code_11() {
        let answers = AnswerMemory::default();
        let large = || vec![b'a'; MEMORY_LIMIT / 4];
        let mut unread = Vec::new();
        for _ in 0..4 {
            let turn = answers.turn().await.unwrap();
            unread.push(turn.respond("text/plain", large()).await.unwrap());
        }
        let turn = answers.turn().await.unwrap();
        let refused = turn.respond("text/plain", large()).await.unwrap_err();
        assert_eq!(refused.code, api::TRY_AGAIN_LATER);
        let read = to_bytes(unread.pop().unwrap().into_body(), MEMORY_LIMIT).await;
        assert_eq!(read.unwrap().len(), MEMORY_LIMIT / 4);
        let turn = answers.turn().await.unwrap();
        turn.respond("text/plain", large()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_above_the_memory_limit_is_sent_alone() {
        let answers = AnswerMemory::default();
        let turn = answers.turn().await.unwrap();
        let huge = turn
            .respond("text/plain", vec![b'a'; 2 * MEMORY_LIMIT])
            .await;
        let next = answers.turn().await.unwrap().json(&7).await.unwrap_err();
        assert_eq!(next.code, api::TRY_AGAIN_LATER);
        drop(huge);
        answers.turn().await.unwrap().json(&7).await.unwrap();
    }
}
