//! dev_comm
