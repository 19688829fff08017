package bucket

import (
	"context"
	"net"
	"time"
)

// SetPartSize sets the size of parts, and of the largest file that is uploaded as a whole.
func (s *S3) SetPartSize(n int64) { s.partSize = n }

// SetStallTimeout sets the time after which a connection without traffic ends, for later connections.
func (s *S3) SetStallTimeout(d time.Duration) { s.transport.stall = d }

// Dial returns a connection to a server of the storage.
func (s *S3) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.transport.DialContext(ctx, "tcp", address)
}

// ForgetFileCheck lets the next request check the credentials file.
func (s *S3) ForgetFileCheck() { s.credentials.checked = time.Time{} }
