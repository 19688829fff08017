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
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"

	nodeclient "github.com/packhorse-git/packhorse/client"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// RpcOptions say which node the small request goes to; address is empty if it goes by Git's protocol.
type RpcOptions struct {
	Address            string
	secretFile         string
	tlsCA              string
	certFile, certsKey string
	serverName         string
}

func (o *RpcOptions) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Address, "rpc", "", "ask the node at HOST:PORT or unix:PATH instead, by its control API: RefService.Resolve")
	f.StringVar(&o.secretFile, "secret-file", "", "with --rpc: file with the node's secret")
	f.StringVar(&o.tlsCA, "tls-ca", "", "with --rpc: speak TLS, and trust the certificates (PEM) in this file")
	f.StringVar(&o.serverName, "server-name", "", "with --tls-ca: the name in the node's certificate (default: the host of its address)")
	f.StringVar(&o.certFile, "tls-cert", "", "with --rpc: the certificate (PEM) to show the node")
	f.StringVar(&o.certsKey, "tls-key", "", "with --rpc: the private key of --tls-cert (PEM)")
}

func (o *RpcOptions) Check() error {
	switch {
	case o.Address == "" && *o != (RpcOptions{}):
		return errors.New("--secret-file, --tls-ca, --server-name, --tls-cert and --tls-key go with --rpc only")
	case (o.certFile == "") != (o.certsKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case (o.certFile != "" || o.serverName != "") && o.tlsCA == "":
		return errors.New("--tls-cert and --server-name go with --tls-ca: without it the node is not spoken to by TLS")
	}
	return nil
}

// options are those of the node's client.
func (o *RpcOptions) options() (options nodeclient.Options, err error) {
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
			return options, fmt.Errorf("--tls-ca %s: no certificate in PEM in it", o.tlsCA)
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

// Client makes one of the node.
func (o *RpcOptions) Client() (*nodeclient.Client, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	return nodeclient.New(o.Address, options)
}

// target is the node, as the generator of small requests has it. The address is one that the client takes.
func (o *RpcOptions) target() (*loadgen.Target, error) {
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
		c.NextProtos = t.Tls.NextProtos
		if c.ServerName == "" {
			c.ServerName = t.Tls.ServerName
		}
		t.Tls = c
	}
	if options.Secret != nil && options.Secret() != "" {
		t.Auth = "Bearer " + options.Secret()
	}
	return t, nil
}

// prepareResolve makes a small request of RefService.Resolve: the Go client's call, by the generator that also sends ls-refs. Beside a load on the same
// CPUs the client's goroutines are late themselves: its p99 there was 18 ms where the same node answered this in 13.
func (o *RpcOptions) prepareResolve(ctx context.Context, t *loadgen.Target, ref string, timeout time.Duration) (*loadgen.Pings, error) {
	c, err := o.prepareCalls(ctx, t, ref, timeout) // what goes wrong, it says better
	if err != nil {
		return nil, err
	}
	c.node.Close()
	node, err := o.target()
	if err != nil {
		return nil, err
	}
	message, err := proto.Marshal(c.request)
	if err != nil {
		return nil, err
	}
	p := &loadgen.Pings{Target: node, Request: node.Call(packhorsev1connect.RefServiceResolveProcedure, message), Timeout: timeout}
	if p.Want, err = p.First(ctx); err != nil {
		return nil, fmt.Errorf("resolving %s at the node: %w", ref, err)
	}
	if !bytes.Contains(p.Want, []byte(c.oid)) {
		return nil, fmt.Errorf("resolving %s at the node: two answers differ: is it being pushed to?", ref)
	}
	return p, nil
}

// calls resolve one ref at a node again and again, by the package that other programs use.
type calls struct {
	node    *nodeclient.Client
	request *packhorsev1.ResolveRequest
	oid     string  // that every answer has to have
	rate    float64 // calls a second in all, due at fixed times (open loop); zero: each of the clients calls as soon as it can
	clients int     // in a closed loop
	timeout time.Duration
}

// prepareCalls asks once.
func (o *RpcOptions) prepareCalls(ctx context.Context, t *loadgen.Target, ref string, timeout time.Duration) (*calls, error) {
	path, err := url.PathUnescape(t.Path)
	if err != nil {
		return nil, err
	}
	node, err := o.Client()
	if err != nil {
		return nil, err
	}
	c := &calls{node: node, request: &packhorsev1.ResolveRequest{Repository: strings.Trim(path, "/"), Name: ref}, timeout: timeout}
	if c.oid, err = c.once(ctx); err != nil {
		node.Close()
		return nil, fmt.Errorf("resolving %s at the node: %w", ref, err)
	}
	return c, nil
}

func (c *calls) once(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	response, err := c.node.Refs().Resolve(ctx, connect.NewRequest(c.request))
	if err != nil {
		return "", err
	}
	oid := response.Msg.GetRef().GetOid()
	if c.oid != "" && c.oid != oid {
		return "", fmt.Errorf("the answer is %.64q, the first one was %s", oid, c.oid)
	}
	return oid, nil
}

// run works for a while.
func (c *calls) run(ctx context.Context, duration time.Duration) (*loadgen.Outcome, error) {
	r := &callsRun{calls: c, out: loadgen.Outcome{Failures: &loadgen.Failures{}}, start: time.Now()}
	if c.rate > 0 {
		r.open(ctx, duration)
	} else {
		r.closed(ctx, duration)
	}
	r.running.Wait()
	r.out.Requests, r.out.Elapsed = len(r.out.Latency), time.Since(r.start)
	return &r.out, ctx.Err()
}

// callsRun is one run.
type callsRun struct {
	*calls
	start   time.Time
	running sync.WaitGroup

	mu  sync.Mutex // guards out.latency
	out loadgen.Outcome
}

// open makes each call on a goroutine of its own, when it is due.
func (r *callsRun) open(ctx context.Context, duration time.Duration) {
	for n := 0; ; n++ {
		after := time.Duration(float64(n) / r.rate * 1e9)
		if after >= duration || !loadgen.PreciseSleep(ctx, time.Until(r.start.Add(after))) {
			return
		}
		r.running.Go(func() { r.call(ctx, after) })
	}
}

// closed has each client call again when it has its answer.
func (r *callsRun) closed(ctx context.Context, duration time.Duration) {
	for range r.clients {
		r.running.Go(func() {
			for after := time.Since(r.start); after < duration && ctx.Err() == nil; after = time.Since(r.start) {
				if !r.call(ctx, after) {
					loadgen.Sleep(ctx, loadgen.RetryAfter)
				}
			}
		})
	}
}

// call makes a call that was due at a time after the start.
func (r *callsRun) call(ctx context.Context, due time.Duration) bool {
	_, err := r.once(ctx)
	took := time.Since(r.start) - due
	if err != nil {
		if ctx.Err() == nil {
			r.out.Failures.Add(err)
		}
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Latency = append(r.out.Latency, took)
	return true
}
