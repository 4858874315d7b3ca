package raft

const memberEnv = "MQB_TEST_MEMBER"

func runMember() {}
