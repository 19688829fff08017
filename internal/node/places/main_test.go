package places

import (
	"testing"

	"go.uber.org/goleak"
)

// Closed Directories leave nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
