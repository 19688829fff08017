package hydrate

import (
	"testing"

	"go.uber.org/goleak"
)

// A closed cache leaves nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
