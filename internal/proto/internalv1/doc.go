// Package internalv1 contains the messages of the calls between gateways, storage nodes and search processes. The
// services are in internalv1connect. The definitions are in proto/packhorse/internal/v1. Unlike package packhorsev1,
// they may change with each release; a release works with the processes of the previous one.
package internalv1
