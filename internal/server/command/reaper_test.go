package command

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// TestReaperNeedsAServer runs the reaper command without a server.
func TestReaperNeedsAServer(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, env := range []Env{{Args: []string{"reaper", "auto"}, Stdin: strings.NewReader("")},
		{Args: []string{"reaper", "auto"}, Stdin: null}, {Args: []string{"reaper"}}} {
		var errs bytes.Buffer
		env.Stdout, env.Stderr = &errs, &errs
		if code := Main(context.Background(), env); code != exitUsage {
			t.Errorf("exit %d: %s", code, &errs)
		}
	}
}
