//! Bodies of requests: how large, how long on their way, and how many bytes of them at a time.

use std::sync::Arc;
use std::time::Duration;

use api::MAX_REQUEST;
use axum::body::{Body, HttpBody as _, to_bytes};
use cni::Error;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a client may take to send its request, from the moment that there is room for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are counted together.
const UNIT: usize = 1 << 10;
/// Bytes that requests may have together.
const ROOM: usize = 64 << 20;

/// The room that requests have together: however many clients there are, the agent keeps within its memory.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

/// A request, and the room that it takes for as long as it is worked on.
#[derive(Debug)]
pub(crate) struct Read<T> {
    pub(crate) value: T,
    _room: OwnedSemaphorePermit,
}

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM / UNIT)))
    }
}

impl Room {
    /// Reads a body of JSON. A client that is too slow or sends too much is not worth waiting for.
    pub(crate) async fn read<T: DeserializeOwned>(&self, body: Body) -> Result<Read<T>, Error> {
        let announced = body.size_hint().upper();
        let bytes = announced
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(MAX_REQUEST);
        if bytes > MAX_REQUEST {
            return Err(Error::io(format!(
                "the request has {bytes} bytes, and {MAX_REQUEST} is the most"
            )));
        }
        let room = self.take(bytes).await?;
        let read = timeout(PATIENCE, to_bytes(body, MAX_REQUEST))
            .await
            .map_err(|_| Error::io("the request did not arrive in time"))?;
        let read = read.map_err(|error| Error::io(format!("cannot read the request: {error}")))?;
        let value = serde_json::from_slice(&read);
        Ok(Read {
            value: value.map_err(|error| Error::decode(error.to_string()))?,
            _room: room,
        })
    }

    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let room = timeout(PATIENCE, Arc::clone(&self.0).acquire_many_owned(units)).await;
        let none = || Error::try_again_later("other requests take all the room there is");
        room.map_err(|_| none())?.map_err(|_| none())
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

    /// behaviour A2. The clock of this test goes on by itself when nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn requests_that_take_all_room_make_others_wait_and_then_come_again() {
        let room = Room::default();
        let mut held = Vec::new();
        for _ in 0..ROOM / MAX_REQUEST {
            held.push(room.read::<Value>(body(MAX_REQUEST)).await.unwrap());
        }
        let refused = room.read::<Value>(body(10)).await.unwrap_err();
        assert_eq!(refused.code, api::TRY_AGAIN_LATER);
        held.pop();
        assert_eq!(room.read::<Value>(body(10)).await.unwrap().value, 7);
    }

    #[tokio::test]
    async fn a_body_that_is_announced_as_too_large_is_not_read() {
        let refused = Room::default()
            .read::<Value>(body(MAX_REQUEST + 1))
            .await
            .unwrap_err();
        assert!(refused.msg.contains("is the most"), "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let never =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let room = Room::default();
        let refused = room.read::<Value>(never).await.unwrap_err();
        assert!(refused.msg.contains("in time"), "{refused:?}");
        assert_eq!(room.0.available_permits(), ROOM / UNIT);
    }
}
