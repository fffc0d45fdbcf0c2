//! Request bodies: limits of their size, of their arrival time, and of the memory that all of them
//! use.

use std::sync::Arc;
use std::time::Duration;

use api::MAX_REQUEST;
use axum::body::{Body, HttpBody as _, to_bytes};
use cni::Error;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Timeout of receiving a body, and of waiting for its memory.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes per semaphore permit.
const UNIT: usize = 1 << 10;
/// Maximum memory of all request bodies together, in bytes.
const MEMORY_LIMIT: usize = 64 << 20;

/// The memory for request bodies, shared by all requests: it bounds the agent's memory for any
/// number of clients.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory(Arc<Semaphore>);

/// A parsed body, with its memory reserved until it is dropped.
#[derive(Debug)]
pub(crate) struct ParsedBody<T> {
    pub(crate) value: T,
    _permit: OwnedSemaphorePermit,
}

impl Default for RequestMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MEMORY_LIMIT / UNIT)))
    }
}

impl RequestMemory {
    /// Reads and parses a JSON body. A body that is too large or too slow is an error.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        body: Body,
    ) -> Result<ParsedBody<T>, Error> {
        let announced = body.size_hint().upper();
        let bytes = announced
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(MAX_REQUEST);
        if bytes > MAX_REQUEST {
            return Err(Error::io(format!(
                "request body of {bytes} bytes is too large: {MAX_REQUEST} is the maximum"
            )));
        }
        let memory = self.reserve(bytes).await?;
        let read = timeout(BODY_TIMEOUT, to_bytes(body, MAX_REQUEST))
            .await
            .map_err(|_| Error::io("the request body did not arrive in time"))?;
        let read = read.map_err(|error| Error::io(format!("cannot read the request: {error}")))?;
        let value = serde_json::from_slice(&read);
        Ok(ParsedBody {
            value: value.map_err(|error| Error::decode(error.to_string()))?,
            _permit: memory,
        })
    }

    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let memory = timeout(BODY_TIMEOUT, Arc::clone(&self.0).acquire_many_owned(units)).await;
        let none = || Error::try_again_later("other requests use all memory for request bodies");
        memory.map_err(|_| none())?.map_err(|_| none())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use serde_json::Value;

    use super::*;

    fn body(bytes: usize) -> Body {
        Body::from(format!("{}7", " ".repeat(bytes - 1)))
    }

    /// behaviour A2. The paused clock advances whenever all tasks are idle.
    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_memory_limit_wait_and_are_then_refused_with_code_11() {
        let memory = RequestMemory::default();
        let mut held = Vec::new();
        for _ in 0..MEMORY_LIMIT / MAX_REQUEST {
            held.push(memory.read::<Value>(body(MAX_REQUEST)).await.unwrap());
        }
        let refused = memory.read::<Value>(body(10)).await.unwrap_err();
        assert_eq!(refused.code, api::TRY_AGAIN_LATER);
        held.pop();
        assert_eq!(memory.read::<Value>(body(10)).await.unwrap().value, 7);
    }

    #[tokio::test]
    async fn a_body_that_is_announced_as_too_large_is_not_read() {
        let refused = RequestMemory::default()
            .read::<Value>(body(MAX_REQUEST + 1))
            .await
            .unwrap_err();
        assert!(refused.msg.contains("is the maximum"), "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_times_out() {
        let never =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let memory = RequestMemory::default();
        let refused = memory.read::<Value>(never).await.unwrap_err();
        assert!(refused.msg.contains("in time"), "{refused:?}");
        assert_eq!(memory.0.available_permits(), MEMORY_LIMIT / UNIT);
    }
}
