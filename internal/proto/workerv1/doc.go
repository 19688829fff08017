// Package workerv1 holds the messages between the server and its search worker processes. They are private and may
// change with each release: both ends are always the same program.
package workerv1
