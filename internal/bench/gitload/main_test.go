package gitload

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
)

func TestMain(m *testing.M) { benchtest.Main(m, Commands) }
