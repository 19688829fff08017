package gitload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// RPCOptions choose the node of the small request. Without an address the request uses Git's protocol.
type RPCOptions struct {
	Address    string
	secretFile string
	secret     string // from the file
}

func (o *RPCOptions) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Address, "rpc", "",
		"send the requests to the node at HOST:PORT or unix:PATH, with its control API: RefService.Resolve")
	f.StringVar(&o.secretFile, "secret-file", "", "with --rpc: file with the node's secret")
}

func (o *RPCOptions) Check() error {
	if o.secretFile == "" {
		return nil
	}
	if o.Address == "" {
		return errors.New("--secret-file needs --rpc")
	}
	b, err := os.ReadFile(o.secretFile)
	if err != nil {
		return fmt.Errorf("--secret-file: %w", err)
	}
	o.secret = strings.TrimSpace(string(b))
	return nil
}

// target returns the node.
func (o *RPCOptions) target() (*loadgen.Target, error) {
	socket, local := strings.CutPrefix(o.Address, "unix:")
	address := "http://" + o.Address
	if local {
		address = "http://localhost"
	}
	t, err := loadgen.ParseTarget(address, false)
	if err != nil {
		return nil, err
	}
	if local {
		t.Socket = socket
	}
	if o.secret != "" {
		t.Auth = "Bearer " + o.secret
	}
	return t, nil
}

// prepare returns the load of a small request for a ref, and its description.
func (o *RPCOptions) prepare(ctx context.Context, t *loadgen.Target, ref string, timeout time.Duration) (*loadgen.Load,
	string, error) {
	if o.Address == "" {
		return prepareRefs(ctx, t, ref, timeout)
	}
	load, err := o.prepareResolve(ctx, t, ref, timeout)
	return load, fmt.Sprintf("RefService.Resolve of %s at %s", ref, o.Address), err
}

// prepareResolve calls RefService.Resolve once, and returns the load that repeats the call and compares every response
// with the first.
func (o *RPCOptions) prepareResolve(ctx context.Context, t *loadgen.Target, ref string,
	timeout time.Duration) (*loadgen.Load, error) {
	repository, err := RepositoryOf(t)
	if err != nil {
		return nil, err
	}
	target, err := o.target()
	if err != nil {
		return nil, err
	}
	message, err := proto.Marshal(&packhorsev1.ResolveRequest{Repository: repository, Name: ref})
	if err != nil {
		return nil, err
	}
	call := target.Encode(http.MethodPost, packhorsev1connect.RefServiceResolveProcedure,
		"Connect-Protocol-Version: 1\r\nContent-Type: application/proto\r\n", message)
	want, err := target.AskAll(ctx, call, timeout)
	response := &packhorsev1.ResolveResponse{}
	if err == nil {
		err = proto.Unmarshal(want, response)
	}
	if err == nil && response.GetRef().GetOid() == "" {
		err = errors.New("the response has no object ID")
	}
	if err != nil {
		return nil, fmt.Errorf("resolve %s at the node: %w", ref, err)
	}
	return loadgen.Repeat(target, call, want, timeout), nil
}

// RepositoryOf returns the path of the repository in a target's URL.
func RepositoryOf(t *loadgen.Target) (string, error) {
	path, err := url.PathUnescape(t.Path)
	return strings.Trim(path, "/"), err
}
