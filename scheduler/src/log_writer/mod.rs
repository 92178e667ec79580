//! log writer
pub mod policy;
pub mod transition;
mod ids;
