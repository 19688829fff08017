// Package internalv1connect contains clients and handlers of the services between gateways, storage nodes and search
// processes.
package internalv1connect
