"""What a training run will take, before it starts: parameters, memory, time, layout on GPUs."""
