// Package hostsim is a simulated device: the operators of kernels/cpu with memory, streams and copies
// like those of an accelerator. Code that forgets a copy, a wait or the size of the device's memory
// fails on it as on an accelerator. Results have the same bits as those of kernels/cpu.
//
//   - Memory has a budget. The host cannot address it (Buffer.Host is nil), and
//     operators refuse memory of other devices. Wrap uploads.
//   - Streams are deferred: nothing runs before the host waits for it, so a result that is read too
//     early is never there by luck. Enqueuing a copy to the host fills its destination with garbage,
//     and a source that changes before its copy has run is an error. With Options.Async streams run
//     by themselves instead, and copies take the time of their rate.
//   - Every operator and copy has a place on a virtual time line (Clock, Rates),
//     independent of real time. Compute and the two directions of copying overlap,
//     and streams and events order them. With one host goroutine the times are the
//     same in every run, even if it simulates several threads (Clock.Enter). A
//     Processor simulates the host: its experts take time on the same clock.
//   - Streams time copies and waits (device.Clock): on that line, or in real time if no rate is given
//     or with Options.Async.
//   - Counters count bytes, copies, launches and memory. Fail makes the n-th
//     operator, copy or allocation fail.
//   - The host gets the errors of enqueued work when it waits. They are permanent: the device does no
//     more work, like a GPU after a fault.
//
// Slices given to an operator (spans, lists of work) are read when it is enqueued, memory when it runs.
package hostsim
