package e2e

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMirror runs stories of mirrors of a real git http-backend behind a real nginx.
func TestMirror(t *testing.T) {
	t.Parallel()
	if nginxProgram() == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("nginx is not installed")
		}
		t.Skip("*** There is no nginx: mirrors are NOT tested. ***")
	}
	runStoriesWith(t, "testdata/mirror", makeTemplates(t), "")
}

// cmdDeliver sends a webhook of a forge and compares the status of the response: deliver FORGE SECRET DELIVERY FILE
// STATUS. The body is the file with variables replaced. With "-" as the secret it is not signed.
func cmdDeliver(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 5 {
		ts.Fatalf("usage: deliver github|gitlab|gitea|bitbucket SECRET|- DELIVERY FILE STATUS")
	}
	body := []byte(os.Expand(ts.ReadFile(args[3]), ts.Getenv))
	request, err := http.NewRequest(http.MethodPost, ts.Getenv("URL")+"/-/hooks/"+args[0], bytes.NewReader(body))
	ts.Check(err)
	request.Header.Set("Content-Type", "application/json")
	sum := hmac.New(sha256.New, []byte(args[1]))
	sum.Write(body)
	signature := hex.EncodeToString(sum.Sum(nil))
	headers := map[string][3]string{ // signature, event, delivery
		"github":    {"X-Hub-Signature-256: sha256=" + signature, "X-GitHub-Event: push", "X-GitHub-Delivery: "},
		"gitlab":    {"X-Gitlab-Token: " + args[1], "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: "},
		"gitea":     {"X-Gitea-Signature: " + signature, "X-Gitea-Event: push", "X-Gitea-Delivery: "},
		"bitbucket": {"X-Hub-Signature: sha256=" + signature, "X-Event-Key: repo:push", "X-Request-UUID: "},
	}[args[0]]
	headers[2] += args[2]
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if args[1] != "-" || header != headers[0] {
			request.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(request)
	ts.Check(err)
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); strconv.Itoa(response.StatusCode) != args[4] {
		ts.Fatalf("the webhook got %s, want %s: %s", response.Status, args[4], text)
	}
}
