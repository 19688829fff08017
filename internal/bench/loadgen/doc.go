// Package loadgen sends requests to a server and measures the responses.
//
// A load generator that costs more than the server measures itself. Therefore the loops in this package implement the
// client side of HTTP/1.1. They encode a request once, parse the head of a response in place, and drop bulk data in the
// kernel (recv with MSG_TRUNC). On other systems and with TLS they read bulk data into a buffer. Every response is
// checked: its status, its length, and the conditions of the caller.
//
// Replay transfers bulk data, with one goroutine for each connection. Sender sends small requests. On Linux it uses one
// thread with its own poll loop, because the timers of the Go runtime are a millisecond coarse and a small request
// takes less.
//
// The figures of a run cover the time from its first request to the end of its last response. No request starts after
// the duration. A run waits for its running requests, and computes rates over the elapsed time.
package loadgen
