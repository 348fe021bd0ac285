"""Operations of the networks written for one device: in Triton for GPUs, in C++ for processors."""
