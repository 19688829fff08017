package storage_test

import (
	"testing"

	"go.uber.org/goleak"
)

// A node that was closed leaves nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
