// Package loadgen sends requests to a server and measures the answers.
//
// A load generator that costs more than the server measures itself. The loops in this package therefore speak HTTP/1.1
// by hand: a request is encoded once and written as it is, the head of a response is parsed in place, and bulk data is
// dropped in the kernel (recv with MSG_TRUNC; on other systems and under TLS it is read into a buffer). Every response
// is checked: its status, its length, and what the caller checks in addition.
//
// Replay moves bulk data, with one goroutine for each connection. Pings sends small requests, on Linux from one thread
// with its own poll loop, because the timers of the Go runtime have a granularity of a millisecond and a small request
// takes less.
//
// The figures of a run cover everything from its first request to the end of its last response. No request starts after
// the duration, running requests are waited for, and rates are computed over the time that really passed.
package loadgen
