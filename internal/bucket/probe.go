package bucket

import (
	"context"
	"errors"
	"time"
)

// ProbeOptions configure Probe.
type ProbeOptions struct {
	// Thorough adds many more races of creates and an upload in parts. It is for the set-up of a store. Without it, the
	// probe takes about a second on a local network.
	Thorough bool
}

// Report is the result of a probe.
type Report struct {
	Store  string        `json:"store"` // the URL
	Took   time.Duration `json:"took"`
	Checks []Check       `json:"checks"`
}

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"` // what was found
	Remedy string `json:"remedy,omitempty"` // what to do if the check failed
}

// Probe checks that a bucket keeps the promises that the store needs. It writes objects below probe/ and removes them.
//
// The error is nil if all checks passed. Its kind is Invalid if the storage breaks a promise, and Unavailable if the
// storage could not be reached or denies access.
func Probe(context.Context, Bucket, ProbeOptions) (*Report, error) {
	return nil, errors.New("not implemented")
}
