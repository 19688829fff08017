package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/server/adminapi"
)

// maxAnswer is the maximum size of a server's response in bytes.
const maxAnswer = 64 << 20

// refusal is a response of a server other than 200.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// ask sends a request without a body and returns the response. The network is "unix" with a path as the address, or
// "tcp" with HOST:PORT. The error is a *refusal if the response is not 200.
func ask(ctx context.Context, network, address, method, path string) ([]byte, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	host := address
	if network == "unix" {
		host = "localhost"
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil || response.StatusCode == http.StatusOK {
		return text, err
	}
	var problem adminapi.Error
	if json.Unmarshal(text, &problem) != nil || problem.Error == "" {
		problem.Error = fmt.Sprintf("%s: %.200s", response.Status, bytes.TrimSpace(text))
	}
	return nil, &refusal{response.StatusCode, problem.Error}
}
