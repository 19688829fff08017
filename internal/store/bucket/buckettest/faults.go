package buckettest

import "time"

// Faults are the ways in which a Memory fails or breaks its promises. Numbers are probabilities from 0 to 1. The zero
// value has no faults.
type Faults struct {
	// Faults of every object storage. The store has to be correct with all of them.

	LostRequests  float64 // a write does nothing and fails
	LostAnswers   float64 // a write succeeds, and its caller sees an error
	LateWrites    float64 // a write fails, and lands before one of the next 11 operations
	DoubledWrites float64 // a write succeeds, and lands again before one of the next 11 operations
	FailedReads   float64 // Get, Open and List fail
	Throttled     float64 // an operation does nothing and fails with 503 SlowDown
	Down          bool    // each operation does nothing and fails

	Latency time.Duration // of each operation

	// Broken promises. The probe refuses each of them.

	IgnoredCondition bool          // Create overwrites
	TwoWinners       float64       // the second create of a key wins, too
	StaleReads       float64       // a read sees the state before the last write of the key
	CachedMisses     time.Duration // how long a key that was read as missing stays missing for readers
	Truncated        float64       // a body is cut without an error
	Flipped          float64       // one bit of a body is changed
	IgnoredChecksum  bool          // Put stores what does not match its checksum
	IgnoredRange     bool          // Open returns whole objects
	IgnoredDelete    bool
	UnsortedList     bool
	LateList         float64       // a list does not show a new key
	ClockSkew        time.Duration // the clock of the storage minus ours
	Proxy            string        // the name of a caching proxy in between
}
