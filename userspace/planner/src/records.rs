//! Records of attachments, as the planner reads them.

use std::collections::BTreeMap;

use model::{AttachmentKey, Record};

/// Records of attachments, by key.
pub type Records = BTreeMap<AttachmentKey, Record>;
