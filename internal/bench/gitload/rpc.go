package gitload

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"

	nodeclient "github.com/packhorse-git/packhorse/client"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// RPCOptions choose the node of the small request. Without an address the request uses Git's protocol.
type RPCOptions struct {
	Address            string
	secretFile         string
	tlsCA              string
	certFile, certsKey string
	serverName         string
}

func (o *RPCOptions) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Address, "rpc", "",
		"send the requests to the node at HOST:PORT or unix:PATH, with its control API: RefService.Resolve")
	f.StringVar(&o.secretFile, "secret-file", "", "with --rpc: file with the node's secret")
	f.StringVar(&o.tlsCA, "tls-ca", "", "with --rpc: use TLS, and trust the certificates (PEM) in this file")
	f.StringVar(&o.serverName, "server-name", "",
		"with --tls-ca: the name in the node's certificate (default: the host of its address)")
	f.StringVar(&o.certFile, "tls-cert", "", "with --rpc: the client certificate (PEM)")
	f.StringVar(&o.certsKey, "tls-key", "", "with --rpc: the private key of --tls-cert (PEM)")
}

func (o *RPCOptions) Check() error {
	switch {
	case o.Address == "" && *o != (RPCOptions{}):
		return errors.New("--secret-file, --tls-ca, --server-name, --tls-cert and --tls-key need --rpc")
	case (o.certFile == "") != (o.certsKey == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case (o.certFile != "" || o.serverName != "") && o.tlsCA == "":
		return errors.New("--tls-cert and --server-name need --tls-ca, which turns on TLS")
	}
	return nil
}

// options returns the options of the node's client.
func (o *RPCOptions) options() (options nodeclient.Options, err error) {
	if o.secretFile != "" {
		b, err := os.ReadFile(o.secretFile)
		if err != nil {
			return options, fmt.Errorf("--secret-file: %w", err)
		}
		secret := strings.TrimSpace(string(b))
		options.Secret = func() string { return secret }
	}
	if o.tlsCA != "" {
		b, err := os.ReadFile(o.tlsCA)
		if err != nil {
			return options, fmt.Errorf("--tls-ca: %w", err)
		}
		options.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: o.serverName}
		if !options.TLS.RootCAs.AppendCertsFromPEM(b) {
			return options, fmt.Errorf("--tls-ca %s: no PEM certificate", o.tlsCA)
		}
	}
	if o.certFile != "" {
		pair, err := tls.LoadX509KeyPair(o.certFile, o.certsKey)
		if err != nil {
			return options, fmt.Errorf("--tls-cert: %w", err)
		}
		options.TLS.Certificates = []tls.Certificate{pair}
	}
	return options, nil
}

// Client returns a client of the node.
func (o *RPCOptions) Client() (*nodeclient.Client, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	return nodeclient.New(o.Address, options)
}

// target returns the node for the generator of small requests. The client must accept the address.
func (o *RPCOptions) target() (*loadgen.Target, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	address := o.Address
	socket, local := strings.CutPrefix(address, "unix:")
	if local {
		address = "localhost"
	}
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if options.TLS != nil {
			scheme = "https://"
		}
		address = scheme + address
	}
	t, err := loadgen.ParseTarget(address, false)
	if err != nil {
		return nil, err
	}
	if local {
		t.Socket = socket
	}
	if c := options.TLS; c != nil {
		c.NextProtos = t.TLS.NextProtos
		if c.ServerName == "" {
			c.ServerName = t.TLS.ServerName
		}
		t.TLS = c
	}
	if options.Secret != nil && options.Secret() != "" {
		t.Auth = "Bearer " + options.Secret()
	}
	return t, nil
}

// prepareResolve calls RefService.Resolve once, and returns the load that repeats the call and compares every response
// with the first.
func (o *RPCOptions) prepareResolve(ctx context.Context, t *loadgen.Target, ref string,
	timeout time.Duration) (*loadgen.Pings, error) {
	node, err := o.Client() // its errors are more specific than a status
	if err != nil {
		return nil, err
	}
	defer node.Close()
	repository, err := RepositoryOf(t)
	if err != nil {
		return nil, err
	}
	request := &packhorsev1.ResolveRequest{Repository: repository, Name: ref}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := node.Refs().Resolve(limited, connect.NewRequest(request))
	if err != nil {
		return nil, fmt.Errorf("resolve %s at the node: %w", ref, err)
	}
	p, err := o.Pings(ctx, packhorsev1connect.RefServiceResolveProcedure, request, timeout)
	if err != nil {
		return nil, fmt.Errorf("resolve %s at the node: %w", ref, err)
	}
	if !bytes.Contains(p.Want, []byte(response.Msg.GetRef().GetOid())) {
		return nil, fmt.Errorf("resolve %s at the node: two responses differ, perhaps because of a push", ref)
	}
	return p, nil
}

// Pings calls a procedure of the node once, with the Connect protocol, and returns the load that repeats the call.
func (o *RPCOptions) Pings(ctx context.Context, procedure string, request proto.Message,
	timeout time.Duration) (*loadgen.Pings, error) {
	node, err := o.target()
	if err != nil {
		return nil, err
	}
	message, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	p := &loadgen.Pings{Target: node, Request: node.Call(procedure, message), Timeout: timeout}
	p.Want, err = p.First(ctx)
	return p, err
}

// RepositoryOf returns the path of the repository in a target's URL.
func RepositoryOf(t *loadgen.Target) (string, error) {
	path, err := url.PathUnescape(t.Path)
	return strings.Trim(path, "/"), err
}
