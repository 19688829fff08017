package bucket

import "time"

// Connection is what the headers of answers tell about the way to the object storage.
type Connection struct {
	ClockSkew time.Duration // the clock of the storage minus ours, by the last answer
	Proxy     string        // the header by which a proxy or cache in between showed itself, or empty
}
